package handover

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pannier/pannier/test/lib/check"
)

// serveOn serves a listener as the API does. Queries that wait are left to the next server.
func serveOn(t *testing.T, s *Sockets, address string) *http.Server {
	t.Helper()
	l, err := s.Listen("api", address, true, func() (net.Listener, error) { return net.Listen("unix", address) })
	if err != nil {
		t.Fatal(err)
	}
	type key struct{}
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Protocols: protocols, ReadHeaderTimeout: 10 * time.Second, ConnState: Track,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, key{}, Of(c)) },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			conn := r.Context().Value(key{}).(*Conn)
			if !conn.Enter(true) {
				panic(http.ErrAbortHandler)
			}
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Errorf("read a request: %v", err)
			}
			if r.URL.Path == "/waits" {
				select {
				case <-s.Leaving().Done():
					if conn.Leave() {
						panic(http.ErrAbortHandler)
					}
				case <-time.After(time.Millisecond):
				}
			}
			_, _ = w.Write(body)
		}),
	}
	go func() { _ = server.Serve(l) }()
	return server
}

// next hands everything over to other Sockets, as Exec and Inherit do.
func next(t *testing.T, s *Sockets, server *http.Server) *Sockets {
	t.Helper()
	if err := s.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	kept, err := s.Keep()
	if err == nil {
		err = server.Shutdown(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	for n, i := range kept.all {
		l := s.listeners[i.Name]
		l.settle(t.Context())
		kept.all[n].conns = l.waits
	}
	return NewSockets(&Inheritance{sockets: kept.all})
}

// clientConn counts the connections that the server has ended. The client may end one itself: net/http does when its
// own writing goroutine is 50 ms late.
type clientConn struct {
	net.Conn
	ended *atomic.Int64
}

func (c clientConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil && !errors.Is(err, net.ErrClosed) {
		c.ended.Add(1)
	}
	return n, err
}

// TestEveryRequestIsAnsweredOnce: servers hand their clients over to each other, again and again. Each request gets its
// answer, and no server ends a connection.
func TestEveryRequestIsAnsweredOnce(t *testing.T) {
	address := filepath.Join(t.TempDir(), "api.sock")
	s := NewSockets(nil)
	server := serveOn(t, s, address)
	over := make(chan struct{})
	var clients sync.WaitGroup
	var calls, ended atomic.Int64
	for n := range 16 {
		client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, "unix", address)
				return clientConn{conn, &ended}, err
			},
		}}
		clients.Go(func() {
			defer client.CloseIdleConnections()
			for call := 0; ; call++ {
				select {
				case <-over:
					return
				default:
				}
				want := strings.Repeat(fmt.Sprint(n, "/", call, " "), 1+call%1000)
				resp, err := client.Post("http://x/"+[]string{"", "waits"}[n%2], "text/plain", strings.NewReader(want))
				if err != nil {
					t.Error(err)
					return
				}
				got, err := io.ReadAll(resp.Body)
				if err = errors.Join(err, resp.Body.Close()); err != nil || string(got) != want {
					t.Errorf("the answer is %.40q (%v), want %.40q", got, err, want)
				}
				calls.Add(1)
			}
		})
	}
	for range 100 {
		done := calls.Load()
		for calls.Load() < done+32 && !t.Failed() {
			time.Sleep(100 * time.Microsecond)
		}
		s = next(t, s, server)
		server = serveOn(t, s, address)
		s.Thaw()
	}
	close(over)
	clients.Wait()
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	if n := ended.Load(); n != 0 {
		t.Errorf("the servers have ended %d connections", n)
	}
	t.Logf("%d calls", calls.Load())
}

// TestHalfReadRequestIsParked: a request of which a part was read is answered by the next server, and not by net/http,
// which would take the part for a bad request.
func TestHalfReadRequestIsParked(t *testing.T) {
	line, header := "POST /some/path HTTP/1.1\r\n", "Host: x\r\nContent-Length: 4\r\n\r\n"
	request := line + header + "body"
	for _, part := range []int{1, 6, len(preface), len(preface) + 1, len(line) - 1, len(line), len(line) + 2, 40} {
		t.Run(request[:part], func(t *testing.T) {
			address := filepath.Join(t.TempDir(), "s")
			s := NewSockets(nil)
			server := serveOn(t, s, address)
			client, err := net.Dial("unix", address)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			if _, err := io.WriteString(client, request[:part]); err != nil {
				t.Fatal(err)
			}
			l := s.listeners["api"]
			for l.hasRead() < part {
				time.Sleep(100 * time.Microsecond)
			}
			if err := s.Freeze(t.Context()); err != nil {
				t.Fatal(err)
			}
			l.settle(t.Context()) // net/http has done what it does while it is not shut down
			s = next(t, s, server)
			server = serveOn(t, s, address)
			defer server.Close()
			s.Thaw()
			if _, err := io.WriteString(client, request[part:]); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(client), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if got, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK || string(got) != "body" {
				t.Fatalf("the answer is %s, %q (%v), want the request's body", resp.Status, got, err)
			}
		})
	}
}

// hasRead returns how much was read of requests.
func (l *Listener) hasRead() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.mu.Lock()
		n += len(c.read)
		c.mu.Unlock()
	}
	return n
}

// slowRead is a connection whose read returns late.
type slowRead struct {
	*net.UnixConn
	reads, returns chan struct{}
}

func (s slowRead) Read(p []byte) (int, error) {
	n, err := s.UnixConn.Read(p)
	close(s.reads)
	<-s.returns
	return n, err
}

// TestRequestIsReadWhileItIsParked: what was read when a connection is closed to be parked is part of the request, also
// the beginning of HTTP/2.
func TestRequestIsReadWhileItIsParked(t *testing.T) {
	for _, request := range []string{"GET /", string(preface)} {
		t.Run(request, func(t *testing.T) { readWhileParked(t, request) })
	}
}

func readWhileParked(t *testing.T, request string) {
	t.Helper()
	under, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer under.Close()
	client, err := net.Dial("unix", under.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	accepted, err := under.Accept()
	if err != nil {
		t.Fatal(err)
	}
	l := &Listener{Listener: under, of: NewSockets(nil), parks: true, conns: map[*Conn]struct{}{}}
	slow := slowRead{accepted.(*net.UnixConn), make(chan struct{}), make(chan struct{})}
	conn := l.track(&Conn{socket: slow})
	var reading sync.WaitGroup
	reading.Go(func() { _, _ = conn.Read(make([]byte, 100)) })
	if _, err := io.WriteString(client, request); err != nil {
		t.Fatal(err)
	}
	<-slow.reads
	l.freeze(true)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = conn.Close()
	}()
	select {
	case <-closed:
	case <-time.After(50 * time.Millisecond): // it should wait for the read
	}
	close(slow.returns)
	<-closed
	reading.Wait()
	if len(l.waits) != 1 || string(l.waits[0].read) != request {
		t.Fatalf("parked: %v, want one connection with what was read", l.waits)
	}
	l.waits[0].fd.Close()
}

// TestStopBeforeTheNextProgram: an agent that is told to stop in the last moment of its upgrade executes no program,
// which would not know of it.
func TestStopBeforeTheNextProgram(t *testing.T) {
	const inChild = "HANDOVER_STOPPED"
	if os.Getenv(inChild) == "" {
		child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		child.Env = append(os.Environ(), inChild+"=1")
		if out, err := child.CombinedOutput(); err != nil {
			t.Errorf("it goes on with the next program: %v: %s", err, out)
		}
		return
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	kept, err := NewSockets(nil).Keep()
	check.NoError(t, err)
	if err := kept.Exec(ctx, "/bin/false", Outcome{}); !errors.Is(err, context.Canceled) {
		t.Errorf("it would go on: %v", err)
	}
}

// TestTrialIsAwaited: the process in which a program was tried has the agent's data open, so it has ended when Try
// returns.
func TestTrialIsAwaited(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	script := `#!/bin/sh
echo '{"hello": {"version": "v1.0.0", "ledger": 1}}' >&3
read begin
echo '{"up": true}' >&3
read end
`
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	next, err := NewSockets(nil).Rehearse(t.Context(), program, "-rehearse", Hello{}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer next.End()
	if err := next.Try(t.Context(), check.Patience); err != nil {
		t.Fatal(err)
	}
	select {
	case <-next.ended:
	default:
		t.Error("the process in which it was tried may still run")
	}
}
