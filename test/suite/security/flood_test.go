package security_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/lib/usage"
)

// query is a call between agents.
const query = "/pannier.peer.v1.ServersService/Query"

const (
	stalled     = 200     // bodies over one connection
	stalledSize = 4 << 20 // of each, in bytes; the last one is never sent
	// mayTake bounds the memory, in MiB, that an agent takes for all of them. They are 800 MiB.
	mayTake = 160
)

// Bodies that are begun and never finished do not fill the memory of an agent, whatever its caller has shown: nothing
// without a certificate is read, and what one caller may have in flight is bounded.
func stalledBodies(t *testing.T, i intruder) {
	leader, n2 := i.c.Leader(), i.c.Host("node-2")
	grpcBody := binary.BigEndian.AppendUint32([]byte{0}, stalledSize-5)
	const api = "/pannier.host.v1.VolumeService/RegisterVolume"
	for _, attack := range []struct {
		name, path, content, protocol string
		port                          uint16
		as                            *tls.Config
		begin                         []byte
	}{
		{
			"a node, to the leader", query, "application/grpc", agentProtocol, 0,
			i.ours("node", n2.Name), grpcBody,
		},
		{"nobody, to the http port", api, "application/json", "h2", httpPort, i.nobody(), []byte(`{"spec":{"id":"`)},
		{"an operator, to the API", api, "application/json", "h2", 0, i.ours("cli", "operator"), []byte(`{"spec":{"id":"`)},
	} {
		before := usage.Memory(t, leader.PID(), "VmHWM")
		sent := i.stall(leader, attack.port, attack.as, attack.protocol, attack.path, attack.content, attack.begin)
		grown := usage.Memory(t, leader.PID(), "VmHWM") - before
		t.Logf("%s: %d MiB of %d were taken, and %.0f MiB of memory", attack.name, sent>>20, stalled*stalledSize>>20, grown)
		if grown > mayTake {
			t.Errorf("%s: %s took %.0f MiB of memory", attack.name, leader.Name, grown)
		}
	}
	before := usage.Memory(t, leader.PID(), "VmHWM")
	i.stallGossip(leader)
	grown := usage.Memory(t, leader.PID(), "VmHWM") - before
	t.Logf("nobody, to the gossip port: %.0f MiB of memory", grown)
	if grown > mayTake {
		t.Errorf("nobody, to the gossip port: %s took %.0f MiB of memory", leader.Name, grown)
	}
	logged(i.c.Servers(), "a connection was refused", "node-2", "MiB")
	logged(i.c.Servers(), "a connection for gossip was refused", "address="+i.net.Addr.String())
}

// stallGossip sends states of members that are too large to be true, without the key, and waits until each connection
// is cut off. One that is taken lacks its last byte.
func (i intruder) stallGossip(to *testhost.Host) {
	const encryptMsg, connections, size = 10, 60, 19 << 20
	state := binary.BigEndian.AppendUint32([]byte{encryptMsg}, size)
	state = append(state, make([]byte, size-1)...)
	var all sync.WaitGroup
	for range connections {
		conn, err := i.dial(to, testcluster.SerfPort)
		if err != nil {
			i.t.Fatal(err)
		}
		all.Go(func() {
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(testhost.Wait))
			_, _ = conn.Write(state)
			if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
				i.t.Error("a connection for gossip is kept")
			}
		})
	}
	all.Wait()
}

// stall sends many bodies over one connection until each is refused or lacks its last byte, and returns how much was
// taken of them. The connection is closed then.
func (i intruder) stall(to *testhost.Host, port uint16, as *tls.Config, protocol, path, content string,
	begin []byte,
) (sent int64) {
	i.t.Helper()
	ctx, cancel := context.WithTimeout(i.t.Context(), testhost.Wait)
	defer cancel()
	transport := i.overOne(to, port, as, protocol)
	defer transport.CloseIdleConnections()
	// The first answer comes after the server's settings, which say how many streams it accepts.
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+to.Name+"/v1/health", http.NoBody)
	if err != nil {
		i.t.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		i.t.Fatal(err)
	}
	_ = resp.Body.Close()
	var all, answers sync.WaitGroup
	refused := map[string]int{}
	var mu sync.Mutex
	defer func() {
		cancel()
		answers.Wait()
		i.t.Log(refused)
	}()
	counts := make([]int64, stalled)
	for n := range stalled {
		ended := make(chan struct{})
		body := &stalling{ctx: ctx, begin: begin, left: stalledSize - len(begin) - 1, silent: make(chan struct{})}
		answers.Go(func() {
			defer close(ended)
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+to.Name+path, io.NopCloser(body))
			if err != nil {
				i.t.Error(err)
				return
			}
			req.Header.Set("Content-Type", content)
			req.Header.Set("Te", "trailers")
			req.ContentLength = -1
			resp, err := transport.RoundTrip(req)
			why := fmt.Sprint(err)
			if err == nil {
				why = resp.Status + " " + resp.Header.Get("Grpc-Message")
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
			mu.Lock()
			defer mu.Unlock()
			refused[why]++
		})
		all.Go(func() {
			select {
			case <-ended:
			case <-body.silent:
			case <-ctx.Done():
				i.t.Errorf("body %d is neither refused nor taken", n)
			}
			counts[n] = body.sent()
		})
	}
	all.Wait()
	for _, n := range counts {
		sent += n
	}
	return sent
}

// overOne returns a client that speaks HTTP/2 over one connection, to a host's port or, if it is 0, to that between
// agents.
func (i intruder) overOne(to *testhost.Host, port uint16, as *tls.Config, protocol string) *http.Transport {
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true) // the TLS connection is made here
	var once sync.Once
	return &http.Transport{
		Protocols: protocols,
		DialContext: func(context.Context, string, string) (conn net.Conn, err error) {
			err = errors.New("one connection is enough")
			once.Do(func() {
				if port != 0 {
					conn, err = i.speakHTTPS(to, as, port)
				} else {
					conn, err = i.speak(to, as, protocol)
				}
			})
			return conn, err
		},
	}
}

// unfinished makes a call between agents of which the last byte never comes, and returns when it is answered or cut
// off.
func (i intruder) unfinished(to *testhost.Host, as *tls.Config) error {
	ctx, cancel := context.WithTimeout(i.t.Context(), testhost.Wait)
	defer cancel()
	body := &stalling{ctx: ctx, begin: []byte{0, 0, 0, 0, 100}, left: 99, silent: make(chan struct{})}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+to.Name+query, io.NopCloser(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	transport := i.overOne(to, 0, as, agentProtocol)
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return errors.Join(err, ctx.Err())
	}
	return resp.Body.Close()
}

// speakHTTPS is speak for the http port.
func (i intruder) speakHTTPS(to *testhost.Host, as *tls.Config, port uint16) (net.Conn, error) {
	raw, err := i.dial(to, port)
	if err != nil {
		return nil, err
	}
	cfg := as.Clone()
	cfg.ServerName, cfg.NextProtos = "localhost", []string{"h2"}
	conn := tls.Client(raw, cfg)
	_ = raw.SetDeadline(time.Now().Add(testhost.Wait))
	if err := conn.Handshake(); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	return conn, nil
}

// stalling is a body of which the last byte never comes.
type stalling struct {
	ctx    context.Context
	begin  []byte
	left   int
	silent chan struct{} // closed when all but the last byte was read
	once   sync.Once

	mu   sync.Mutex
	read int64
}

func (s *stalling) sent() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.read
}

func (s *stalling) Read(p []byte) (n int, err error) {
	if n = copy(p, s.begin); n > 0 {
		s.begin = s.begin[n:]
	} else if n = min(len(p), s.left); n > 0 {
		copy(p, strings.Repeat("x", n))
		s.left -= n
	} else {
		s.once.Do(func() { close(s.silent) })
		<-s.ctx.Done()
		return 0, s.ctx.Err()
	}
	s.mu.Lock()
	s.read += int64(n)
	s.mu.Unlock()
	return n, nil
}

// Connections that are kept open without a request take no descriptor that root, raft or a heartbeat needs. The agent
// may have 1,024.
func idleConnections(t *testing.T, i intruder) {
	leader := i.c.Leader()
	most := unix.Rlimit{Cur: 1024, Max: 1024}
	if err := unix.Prlimit(leader.PID(), unix.RLIMIT_NOFILE, &most, nil); err != nil {
		t.Fatal(err)
	}
	var open []net.Conn
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	for n := range 1200 {
		conn, err := i.speakHTTP1(leader)
		if err != nil {
			t.Logf("connection %d: %v", n, err)
			if n < 50 {
				t.Error("it is one of the first")
			}
			break
		}
		open = append(open, conn)
	}
	t.Logf("%d connections are kept open", len(open))
	if r := leader.Try("server", "members"); r.Code != 0 {
		t.Errorf("root cannot ask the agent any more: %s%s", r.Stdout, r.Stderr)
	}
	goesOn(t, i.c)
	logged(i.c.Servers(), "a connection was refused", "address="+i.net.Addr.String())
}

// speakHTTP1 makes a connection that has had one answer.
func (i intruder) speakHTTP1(to *testhost.Host) (net.Conn, error) {
	raw, err := i.dial(to, httpPort)
	if err != nil {
		return nil, err
	}
	cfg := i.nobody()
	cfg.ServerName, cfg.NextProtos = "localhost", []string{httpProtocol}
	conn := tls.Client(raw, cfg)
	_ = raw.SetDeadline(time.Now().Add(5 * time.Second))
	answer := make([]byte, 12)
	if err = conn.Handshake(); err == nil {
		if _, err = io.WriteString(conn, "GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"); err == nil {
			_, err = io.ReadFull(conn, answer)
		}
	}
	if err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	return conn, nil
}
