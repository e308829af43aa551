package transport_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/host/internal/system/pki/pkitest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// timeout is how long a test waits for events that happen at once on an idle machine.
const timeout = 3 * time.Minute

// served is a port with everything that an agent serves on it.
type served struct {
	*transport.Port
	addr string
}

// whoami answers a call with the name of its caller.
type whoami struct {
	healthpb.UnimplementedHealthServer
}

func (whoami) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	peer, ok := transport.PeerFrom(ctx)
	if !ok {
		return nil, status.Error(codes.Unauthenticated, "nobody")
	}
	return nil, status.Error(codes.OK+100, peer.String())
}

// serve opens a port and serves all its protocols. Raft connections get the server's name, and are closed.
func serve(t testing.TB, certs *pki.Certs, log hclog.Logger) served {
	t.Helper()
	port, err := transport.Open(t.Context(), transport.Config{Addr: "127.0.0.1:0", Certs: certs, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{}, 3)
	raft := port.Raft()
	go func() {
		defer func() { done <- struct{}{} }()
		for {
			conn, err := raft.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "raft")
			_ = conn.Close()
		}
	}()
	calls := grpc.NewServer(port.ServerOptions()...)
	healthpb.RegisterHealthServer(calls, whoami{})
	inner := port.GRPC()
	go func() { _ = calls.Serve(inner); done <- struct{}{} }()
	web := &http.Server{
		ConnContext: port.ConnContext, ReadHeaderTimeout: timeout,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			peer, _ := transport.PeerFrom(r.Context())
			fmt.Fprintf(w, "%s %s", r.Proto, peer)
		}),
	}
	outer := port.HTTP()
	go func() { _ = web.Serve(outer); done <- struct{}{} }()
	t.Cleanup(func() {
		calls.Stop()
		if err := errors.Join(web.Close(), port.Close()); err != nil {
			t.Error(err)
		}
		for range 3 {
			<-done
		}
	})
	return served{port, port.Addr().String()}
}

func dialer(t *testing.T, certs *pki.Certs) *transport.Dialer {
	t.Helper()
	d := transport.NewDialer(certs)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// The three kinds of calls, each with the caller that was seen.

func callRaft(ctx context.Context, d *transport.Dialer, addr string) (string, error) {
	conn, err := d.Raft(ctx, "", addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	text, err := io.ReadAll(conn)
	return string(text), err
}

func callGRPC(ctx context.Context, d *transport.Dialer, addr, name string, role pki.Role) (string, error) {
	conn, err := d.Conn(addr, name, role)
	if err != nil {
		return "", err
	}
	_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if status.Code(err) == codes.OK+100 {
		return status.Convert(err).Message(), nil
	}
	return "", err
}

func callHTTP(ctx context.Context, d *transport.Dialer, addr string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+addr+"/", http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := d.Transport().RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

func TestRolesAndProtocols(t *testing.T) {
	ca := pkitest.New(t)
	server := serve(t, ca.Certs(t, pki.Server, "a"), hclog.NewNullLogger())
	for _, c := range []struct {
		role             pki.Role
		raft, grpc, http bool
	}{
		{pki.Server, true, true, true},
		{pki.Node, false, true, true},
		{pki.CLI, false, false, true},
	} {
		d := dialer(t, ca.Certs(t, c.role, "b"))
		caller := "pannier://dc1/" + string(c.role) + "/b"
		check := func(what string, may bool, want, got string, err error) {
			t.Helper()
			if may && (err != nil || got != want) || !may && err == nil {
				t.Errorf("%s with the role %s: got %q, %v; allowed is %v", what, c.role, got, err, may)
			}
		}
		got, err := callRaft(t.Context(), d, server.addr)
		check("raft", c.raft, "raft", got, err)
		got, err = callGRPC(t.Context(), d, server.addr, "a", pki.Server)
		check("gRPC", c.grpc, caller, got, err)
		got, err = callHTTP(t.Context(), d, server.addr)
		check("HTTP", c.http, "HTTP/2.0 "+caller, got, err)
	}
}
