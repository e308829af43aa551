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

// server is a program's part that answers. It notes the requests that it has begun.
type server struct {
	*http.Server
	serving *sync.WaitGroup
	begun   *sync.Map
	// The request with this body is answered after unblock.
	blocks           string
	blocked, unblock chan struct{}
}

// Close closes the server, and waits until nothing is accepted any more.
func (s server) Close() error {
	defer s.serving.Wait()
	return s.Server.Close()
}

// serveOn serves a listener as the API does. Queries that wait are left to the next server.
func serveOn(t *testing.T, s *Sockets, address string, begun *sync.Map) server {
	t.Helper()
	l, err := s.Listen("api", address, true, func() (net.Listener, error) { return net.Listen("unix", address) })
	check.NoError(t, err)
	blocked, unblock := make(chan struct{}), make(chan struct{})
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	h := &http.Server{
		Protocols: protocols, ReadHeaderTimeout: 10 * time.Second, ConnState: Track,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil || r.Method != http.MethodPost {
				t.Errorf("read a request: %s %v", r.Method, err)
			}
			if r.URL.Path == "/waits" {
				select {
				case <-s.Leaving().Done():
					w.Header().Set("Connection", "close")
					w.WriteHeader(http.StatusRequestTimeout)
					return
				case <-time.After(time.Millisecond):
				}
			}
			if _, twice := begun.LoadOrStore(string(body), true); twice {
				t.Errorf("%.40q is answered twice", body)
			}
			if string(body) == "blocks" {
				close(blocked)
				<-unblock
			}
			_, _ = w.Write(body)
		}),
	}
	var serving sync.WaitGroup
	serving.Go(func() { _ = h.Serve(l) })
	return server{h, &serving, begun, "blocks", blocked, unblock}
}

// next hands everything over to other Sockets, as Exec and Inherit do.
func next(t *testing.T, s *Sockets, server server) *Sockets {
	t.Helper()
	check.NoError(t, errors.Join(s.Hold(t.Context()), server.Close()))
	return s.next()
}

func (s *Sockets) next() *Sockets {
	all := s.all()
	for n := range all {
		all[n].listener = nil
	}
	return NewSockets(&Inheritance{sockets: all})
}

// TestEveryRequestIsAnsweredOnce: servers hand their clients over to each other, again and again. Each request gets one
// answer.
func TestEveryRequestIsAnsweredOnce(t *testing.T) {
	address := filepath.Join(t.TempDir(), "api.sock")
	s := NewSockets(nil)
	server := serveOn(t, s, address, new(sync.Map))
	over := make(chan struct{})
	var clients sync.WaitGroup
	var calls, again atomic.Int64
	for n := range 16 {
		client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
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
				for code := http.StatusRequestTimeout; code == http.StatusRequestTimeout; again.Add(1) {
					resp, err := client.Post("http://x/"+[]string{"", "waits"}[n%2], "text/plain", strings.NewReader(want))
					if err != nil {
						t.Error(err)
						return
					}
					got, err := io.ReadAll(resp.Body)
					if err = errors.Join(err, resp.Body.Close()); err != nil {
						t.Error(err)
					}
					if code = resp.StatusCode; code != http.StatusRequestTimeout && string(got) != want {
						t.Errorf("the answer is %s: %.40q, want %.40q", resp.Status, got, want)
					}
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
		server = serveOn(t, s, address, server.begun)
		s.Release()
	}
	close(over)
	clients.Wait()
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	t.Logf("%d calls, %d of them again", calls.Load(), again.Load()-calls.Load())
}

// TestARequestIsNotBegunTwice: a request of which a part was sent is answered where it was begun, and one that comes
// while calls are held back where they are let in.
func TestARequestIsNotBegunTwice(t *testing.T) {
	line, header := "POST /some/path HTTP/1.1\r\n", "Host: x\r\nContent-Length: 4\r\n\r\n"
	request := line + header + "body"
	for _, part := range []int{0, 1, 6, len(line), 40} {
		t.Run(request[:part], func(t *testing.T) {
			address := filepath.Join(t.TempDir(), "s")
			s := NewSockets(nil)
			first := serveOn(t, s, address, new(sync.Map))
			client, err := net.Dial("unix", address)
			check.NoError(t, err)
			defer client.Close()
			if _, err := io.WriteString(client, request[:part]); err != nil {
				t.Fatal(err)
			}
			s.await(t, func(c *Conn) bool { return c.begun == (part > 0) })
			held, cancel := context.WithCancel(t.Context())
			if part > 0 {
				cancel()
			}
			if err := s.Hold(held); (err == nil) != (part == 0) {
				t.Fatalf("with %d bytes of a request: %v", part, err)
			}
			cancel()
			if part > 0 {
				s.Release()
			}
			if _, err := io.WriteString(client, request[part:]); err != nil {
				t.Fatal(err)
			}
			if part == 0 {
				noAnswer(t, client)
				check.NoError(t, first.Close())
				s = s.next()
				first = serveOn(t, s, address, first.begun)
				s.Release()
			}
			defer first.Close()
			resp, err := http.ReadResponse(bufio.NewReader(client), nil)
			check.NoError(t, err)
			defer resp.Body.Close()
			if got, err := io.ReadAll(resp.Body); err != nil || string(got) != "body" {
				t.Errorf("the answer is %s: %q (%v)", resp.Status, got, err)
			}
		})
	}
}

// noAnswer fails if a server answers.
func noAnswer(t *testing.T, client net.Conn) {
	t.Helper()
	check.NoError(t, client.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	if n, err := client.Read(make([]byte, 1)); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("there is an answer (%v)", err)
	}
	check.NoError(t, client.SetReadDeadline(time.Time{}))
}

// TestTheNextRequestStaysInTheSocket: of a request that comes while the one before is answered nothing is read, so that
// the next program can answer it.
func TestTheNextRequestStaysInTheSocket(t *testing.T) {
	address := filepath.Join(t.TempDir(), "s")
	s := NewSockets(nil)
	first := serveOn(t, s, address, new(sync.Map))
	client, err := net.Dial("unix", address)
	check.NoError(t, err)
	defer client.Close()
	request := func(path, body string) {
		if _, err := fmt.Fprintf(client, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", path, len(body),
			body); err != nil {
			t.Fatal(err)
		}
	}
	answers := bufio.NewReader(client)
	answer := func(want string) {
		t.Helper()
		resp, err := http.ReadResponse(answers, nil)
		check.NoError(t, err)
		defer resp.Body.Close()
		if got, err := io.ReadAll(resp.Body); err != nil || string(got) != want {
			t.Errorf("the answer is %s: %q (%v), want %q", resp.Status, got, err, want)
		}
	}
	request("/", first.blocks)
	<-first.blocked
	request("/", "next")
	noAnswer(t, client) // net/http has looked for it
	held := make(chan error, 1)
	go func() { held <- s.Hold(t.Context()) }()
	check.Eventually(t, "calls are held back", s.Held)
	close(first.unblock)
	answer(first.blocks)
	check.NoError(t, errors.Join(<-held, first.Close()))
	s = s.next()
	defer serveOn(t, s, address, first.begun).Close()
	s.Release()
	answer("next")
}

// await waits until there is one connection, and it is as wanted.
func (s *Sockets) await(t *testing.T, is func(c *Conn) bool) {
	t.Helper()
	check.Eventually(t, "there is such a connection", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.conns {
			c.mu.Lock()
			ok := is(c)
			c.mu.Unlock()
			return ok
		}
		return false
	})
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
	if err := NewSockets(nil).Exec(ctx, "/bin/false", Outcome{}); !errors.Is(err, context.Canceled) {
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
	check.NoError(t, os.WriteFile(program, []byte(script), 0o700))
	next, err := NewSockets(nil).Propose(t.Context(), program, "-try", io.Discard)
	check.NoError(t, err)
	defer next.End()
	check.NoError(t, next.Try(t.Context(), check.Patience))
	select {
	case <-next.ended:
	default:
		t.Error("the process in which it was tried may still run")
	}
}
