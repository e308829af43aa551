package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// serveOn serves a listener as the API does. Queries that wait are left to the next server.
func serveOn(t *testing.T, s *Sockets, address string) *http.Server {
	t.Helper()
	l, err := s.Listen("api", address, true, func() (net.Listener, error) { return net.Listen("unix", address) })
	if err != nil {
		t.Fatal(err)
	}
	type key struct{}
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second, ConnState: Track,
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

// TestEveryRequestIsAnsweredOnce: servers hand their clients over to each other, again and again. Each request gets its
// answer, over the connection that it was made on.
func TestEveryRequestIsAnsweredOnce(t *testing.T) {
	address := filepath.Join(t.TempDir(), "api.sock")
	s := NewSockets(nil)
	server := serveOn(t, s, address)
	over := make(chan struct{})
	var clients sync.WaitGroup
	var calls, dials atomic.Int64
	for n := range 16 {
		client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				dials.Add(1)
				return new(net.Dialer).DialContext(ctx, "unix", address)
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
	if n := dials.Load(); n != 16 {
		t.Errorf("16 clients have connected %d times", n)
	}
	t.Logf("%d calls", calls.Load())
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

// TestRequestIsReadWhileItIsParked: what was read when a connection is closed to be parked is part of the request.
func TestRequestIsReadWhileItIsParked(t *testing.T) {
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
	if _, err := client.Write([]byte("GET /")); err != nil {
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
	if len(l.waits) != 1 || string(l.waits[0].read) != "GET /" {
		t.Fatalf("parked: %v, want one connection with what was read", l.waits)
	}
	l.waits[0].fd.Close()
}
