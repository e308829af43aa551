package api_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
)

type agent struct {
	hostv1connect.UnimplementedAgentServiceHandler
}

func (agent) Status(context.Context, *hostv1.StatusRequest) (*hostv1.StatusResponse, error) {
	return &hostv1.StatusResponse{Name: "n"}, nil
}

func (agent) Events(_ context.Context, _ *hostv1.EventsRequest, s *connect.ServerStream[hostv1.EventsResponse]) error {
	for seq := range uint64(3) {
		if err := s.Send(&hostv1.EventsResponse{Event: &hostv1.Event{Seq: seq}}); err != nil {
			return err
		}
	}
	return connect.NewError(connect.CodeNotFound, errors.New("no more"))
}

// serve runs the agent's services on the listener until the test ends.
func serve(t *testing.T, l net.Listener) {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(hostv1connect.NewAgentServiceHandler(agent{}))
	server := &http.Server{Handler: mux}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		server.Close()
		<-done
	})
}

func TestCalls(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	overUnix, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	serve(t, overUnix)
	overTCP, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, overTCP)
	for _, address := range []string{"unix://" + socket, "http://" + overTCP.Addr().String()} {
		t.Run(address[:4], func(t *testing.T) {
			c, err := api.New(address)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			status, err := c.Agent.Status(t.Context(), &hostv1.StatusRequest{})
			if err != nil || status.Name != "n" {
				t.Fatalf("%v, %v", status, err)
			}
			stream, err := c.Agent.Events(t.Context(), &hostv1.EventsRequest{})
			if err != nil {
				t.Fatal(err)
			}
			defer stream.Close()
			n := 0
			for stream.Receive() {
				n++
			}
			if n != 3 || connect.CodeOf(stream.Err()) != connect.CodeNotFound {
				t.Fatalf("%d messages, %v", n, stream.Err())
			}
			if _, err := c.Plugins.ListPlugins(t.Context(),
				&hostv1.ListPluginsRequest{}); connect.CodeOf(err) != connect.CodeUnimplemented {
				t.Fatalf("a service that is not served: %v", err)
			}
		})
	}
}

// A token is sent over the socket, but not over http, where anyone could read it.
func TestToken(t *testing.T) {
	got := make(chan string, 1)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get(api.TokenHeader)
		w.WriteHeader(http.StatusNotFound)
	})
	for network, want := range map[string]string{"unix": "the-secret", "tcp": ""} {
		at := "127.0.0.1:0"
		if network == "unix" {
			at = filepath.Join(t.TempDir(), "s")
		}
		l, err := net.Listen(network, at)
		if err != nil {
			t.Fatal(err)
		}
		address := "http://" + l.Addr().String()
		if network == "unix" {
			address = "unix://" + at
		}
		server := &http.Server{Handler: handler}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = server.Serve(l)
		}()
		c, err := api.New(address, api.WithToken("the-secret"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.ACL.GetACLSelf(t.Context(), &hostv1.GetACLSelfRequest{}); err == nil {
			t.Error("a call without a server succeeded")
		}
		if secret := <-got; secret != want {
			t.Errorf("over %s: %q, want %q", network, secret, want)
		}
		c.Close()
		server.Close()
		<-done
	}
}

func TestUnreachable(t *testing.T) {
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead")
	l, err := net.Listen("unix", dead)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	for name, want := range map[string]string{
		filepath.Join(dir, "none"): "there is no such socket; start the agent (pannier agent, or pannier agent -dev to try it out)",
		dead:                       "nothing listens on it; start the agent",
	} {
		c, err := api.New("unix://" + name)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Agent.Status(t.Context(), &hostv1.StatusRequest{})
		checkUnreachable(t, err, "unix://"+name, want)
		stream, err := c.Agent.Events(t.Context(), &hostv1.EventsRequest{})
		if err == nil {
			stream.Receive()
			err = stream.Err()
		}
		checkUnreachable(t, err, "unix://"+name, want)
	}
}

func checkUnreachable(t *testing.T, err error, address, want string) {
	t.Helper()
	unreachable := (*api.UnreachableError)(nil)
	if connect.CodeOf(err) != connect.CodeUnavailable || !errors.As(err, &unreachable) {
		t.Fatalf("got %v", err)
	}
	if text := err.Error(); !strings.HasPrefix(text, "unavailable: no agent at "+address) ||
		!strings.Contains(text, want) {
		t.Fatalf("got %q, want %q", text, want)
	}
}

func TestBadAddresses(t *testing.T) {
	for _, address := range []string{
		"", "unix://", "unix://rel/path", "/run/pannier.sock", "https://", "http://",
		"tcp://host:1", "http://host:1/path",
	} {
		if _, err := api.New(address); err == nil || !strings.Contains(err.Error(), api.DefaultAddress) {
			t.Errorf("%q: %v", address, err)
		}
	}
}

func TestPermissionDeniedSaysWhoMay(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	err = &api.UnreachableError{Address: "unix://" + socket, Err: syscall.EACCES}
	if text := err.Error(); !strings.HasPrefix(text, "no permission to call the agent at unix://"+socket) ||
		!strings.HasSuffix(text, "run the command as root") {
		t.Fatal(text)
	}
}

// A server without TLS at an https address is reported as an unreachable agent.
func TestNoTLSThere(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, l)
	client, err := api.New("https://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	_, err = client.Agent.Status(t.Context(), &hostv1.StatusRequest{})
	unreachable, record := (*api.UnreachableError)(nil), tls.RecordHeaderError{}
	if !errors.As(err, &unreachable) || !errors.As(unreachable.Err, &record) {
		t.Errorf("got %v", err)
	}
}
