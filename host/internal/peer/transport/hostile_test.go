package transport_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/host/internal/system/pki/pkitest"
)

// protocols are the ALPN names that the port has.
var protocols = []string{"pannier-raft/1", "pannier-rpc/1", "h2", "http/1.1"}

// speak connects with a configuration, and returns the first byte from the other end, or its refusal.
func speak(t *testing.T, addr string, cfg *tls.Config) error {
	t.Helper()
	raw, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer raw.Close()
	_ = raw.SetDeadline(time.Now().Add(timeout))
	conn := tls.Client(raw, cfg)
	if err := conn.Handshake(); err != nil {
		return err
	}
	if conn.ConnectionState().NegotiatedProtocol == "http/1.1" { // the others greet by themselves
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return err
		}
	}
	if strings.HasPrefix(conn.ConnectionState().NegotiatedProtocol, "h2") ||
		conn.ConnectionState().NegotiatedProtocol == "pannier-rpc/1" {
		if _, err := io.WriteString(conn,
			"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
			return err
		}
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}

func TestStrangersAreRefused(t *testing.T) {
	ca, other := pkitest.New(t), pkitest.New(t)
	certs := ca.Certs(t, pki.Server, "a")
	server := serve(t, certs, hclog.NewNullLogger())
	files := ca.Files(t, pki.Server, "b")
	ca.Expire(t, files)
	expired, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	authority, err := tls.LoadX509KeyPair(ca.CertFile, ca.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	for name, shown := range map[string][]tls.Certificate{
		"nobody":             nil,
		"another authority":  other.Certs(t, pki.Server, "b").Client(pki.Server, "").Certificates,
		"expired":            {expired},
		"the authority self": {authority},
	} {
		for _, protocol := range protocols {
			cfg := certs.Client(pki.Server, "", protocol)
			cfg.Certificates = shown
			cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				if len(shown) == 0 {
					return &tls.Certificate{}, nil
				}
				return &shown[0], nil // also where the server would not ask for it
			}
			if err := speak(t, server.addr, cfg); err == nil {
				t.Errorf("%s speaks %s", name, protocol)
			}
		}
	}
	for _, protocol := range protocols {
		if err := speak(t, server.addr, certs.Client(pki.Server, "", protocol)); err != nil {
			t.Errorf("a server does not speak %s: %v", protocol, err)
		}
	}
	for name, offered := range map[string][]string{"no protocol": nil, "another protocol": {"pannier-raft/2"}} {
		if err := speak(t, server.addr, certs.Client(pki.Server, "", offered...)); err == nil {
			t.Errorf("%s is spoken", name)
		}
	}
}

// If an address now belongs to a host that is no server, or to another one, it is not called.
func TestWhoAnswersIsChecked(t *testing.T) {
	ca := pkitest.New(t)
	d := dialer(t, ca.Certs(t, pki.Server, "a"))
	node := serve(t, ca.Certs(t, pki.Node, "n"), hclog.NewNullLogger())
	stranger := serve(t, pkitest.New(t).Certs(t, pki.Server, "b"), hclog.NewNullLogger())
	if got, err := callGRPC(t.Context(), d, node.addr, "n", pki.Node); err != nil {
		t.Errorf("a node is not called: %q, %v", got, err)
	}
	for name, call := range map[string]func() (string, error){
		"raft with a node":      func() (string, error) { return callRaft(t.Context(), d, node.addr) },
		"HTTP with a node":      func() (string, error) { return callHTTP(t.Context(), d, node.addr) },
		"a node as a server":    func() (string, error) { return callGRPC(t.Context(), d, node.addr, "n", pki.Server) },
		"a node of another":     func() (string, error) { return callGRPC(t.Context(), d, node.addr, "m", pki.Node) },
		"raft with a stranger":  func() (string, error) { return callRaft(t.Context(), d, stranger.addr) },
		"a stranger's calls":    func() (string, error) { return callGRPC(t.Context(), d, stranger.addr, "", pki.Server) },
		"HTTP with a stranger":  func() (string, error) { return callHTTP(t.Context(), d, stranger.addr) },
		"a port that is closed": func() (string, error) { return callRaft(t.Context(), d, "127.0.0.1:1") },
	} {
		if got, err := call(); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestAHugeRequestIsRefused(t *testing.T) {
	ca := pkitest.New(t)
	server := serve(t, ca.Certs(t, pki.Server, "a"), hclog.NewNullLogger())
	d := dialer(t, ca.Certs(t, pki.Node, "n"))
	conn, err := d.Conn(server.addr, "a", pki.Server)
	if err != nil {
		t.Fatal(err)
	}
	_, err = healthpb.NewHealthClient(conn).Check(t.Context(),
		&healthpb.HealthCheckRequest{Service: strings.Repeat("x", 100<<20)}, grpc.MaxCallSendMsgSize(200<<20))
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("100 MiB: %v", err)
	}
	if got, err := callGRPC(t.Context(), d, server.addr, "a", pki.Server); err != nil || got != "pannier://dc1/node/n" {
		t.Errorf("after it: %q, %v", got, err)
	}
}

// Silent connections of one address are bounded and cut off, and hold up nobody else.
func TestSlowStrangers(t *testing.T) {
	t.Parallel()
	ca, log := pkitest.New(t), &logged{}
	server := serve(t, ca.Certs(t, pki.Server, "a"), hclog.New(&hclog.LoggerOptions{Output: log}))
	d := dialer(t, ca.Certs(t, pki.Server, "b"))
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	var slow []net.Conn
	for range 150 {
		conn, err := from.DialContext(t.Context(), "tcp", server.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		slow = append(slow, conn)
	}
	// Connections above the limit are closed at once, and the others later, but all of them in the end.
	ends := make(chan time.Time, len(slow))
	for i, conn := range slow {
		go func() {
			if i%2 == 0 { // half of them trickle: what would be a long first record
				_, _ = conn.Write([]byte{0x16, 3, 1, 0x40, 0})
			}
			_ = conn.SetReadDeadline(time.Now().Add(timeout))
			for {
				if _, err := conn.Read(make([]byte, 1)); err != nil {
					if errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
						ends <- time.Time{}
					} else {
						ends <- time.Now()
					}
					return
				}
			}
		}()
	}
	for range 20 {
		if got, err := callRaft(t.Context(), d, server.addr); err != nil || got != "raft" {
			t.Fatalf("a server does not get through: %q, %v", got, err)
		}
	}
	if _, err := callGRPC(t.Context(), d, server.addr, "a", pki.Server); err != nil {
		t.Fatal(err)
	}
	for range slow {
		if at := <-ends; at.IsZero() {
			t.Fatal("a connection that says nothing stays")
		}
	}
	if !strings.Contains(log.all(), "100 connections of this address have not identified themselves yet") {
		t.Error("none was one too many")
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// A peer that has shown its certificate, and then makes no call, is cut off.
func TestASlowPeerIsCutOff(t *testing.T) {
	t.Parallel()
	ca := pkitest.New(t)
	certs := ca.Certs(t, pki.Server, "a")
	server := serve(t, certs, hclog.NewNullLogger())
	raw, err := net.Dial("tcp", server.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	_ = raw.SetDeadline(time.Now().Add(6 * transport.HandshakeTimeout)) // gRPC's own bound is longer
	conn := tls.Client(raw, certs.Client(pki.Server, "", "pannier-rpc/1"))
	for err == nil {
		_, err = conn.Read(make([]byte, 64))
	}
	if isTimeout(err) {
		t.Error("it stays")
	}
}

// The connections of one certificate's holder are bounded, until some are closed.
func TestManyConnectionsOfOnePeer(t *testing.T) {
	ca := pkitest.New(t)
	log := &logged{}
	certs := ca.Certs(t, pki.Server, "a")
	port, err := transport.Open(t.Context(),
		transport.Config{Addr: "127.0.0.1:0", Certs: certs, Logger: hclog.New(&hclog.LoggerOptions{Output: log})})
	if err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	raft := port.Raft()
	d, other := dialer(t, ca.Certs(t, pki.Server, "b")), dialer(t, ca.Certs(t, pki.Server, "c"))
	const most = 256
	var ours []net.Conn
	for range most {
		conn, err := d.Raft(t.Context(), "", port.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		accepted, err := raft.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { accepted.Close() })
		ours = append(ours, accepted)
	}
	refused, err := d.Raft(t.Context(), "", port.Addr().String())
	if err == nil { // it learns so with the first read
		defer refused.Close()
		_ = refused.SetDeadline(time.Now().Add(timeout))
		if _, err = refused.Read(make([]byte, 1)); isTimeout(err) {
			err = nil
		}
	}
	if err == nil {
		t.Error("one connection too many is taken")
	}
	through := func(what string, d *transport.Dialer) {
		t.Helper()
		conn, err := d.Raft(t.Context(), "", port.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		accepted, err := raft.Accept()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		defer accepted.Close()
	}
	through("another peer", other)
	_ = ours[0].Close()
	through("after one was closed", d)
	if !strings.Contains(log.all(), "has 256 connections already") {
		t.Error("it is not logged")
	}
}

// Strangers cannot fill the disk.
func TestRefusalsAreLoggedSparingly(t *testing.T) {
	ca := pkitest.New(t)
	log := &logged{}
	server := serve(t, ca.Certs(t, pki.Server, "a"), hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Warn}))
	for range 300 {
		conn, err := net.Dial("tcp", server.addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
	}
	if lines := strings.Count(log.all(), "\n"); lines == 0 || lines > 150 {
		t.Errorf("300 refusals made %d lines", lines)
	}
}

// logged is a log that a test reads.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) all() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// New certificates are loaded while everybody connects: no connection is refused because of that.
func TestReloadUnderLoad(t *testing.T) {
	ca, log := pkitest.New(t), &logged{}
	load := func(name string) (*pki.Certs, pki.Files) {
		files := ca.Files(t, pki.Server, name)
		certs, err := pki.Load(files, pki.Identity{Name: name, Role: pki.Server, DC: pkitest.DC}, hclog.NewNullLogger())
		if err != nil {
			t.Fatal(err)
		}
		return certs, files
	}
	certs, serverFiles := load("a")
	server := serve(t, certs, hclog.New(&hclog.LoggerOptions{Output: log}))
	others, clientFiles := load("b")
	d := dialer(t, others)
	var callers sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		callers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := callRaft(t.Context(), d, server.addr); err != nil && !tooSlow(err.Error()) {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 10 {
		ca.Replace(t, serverFiles, pki.Server, "a")
		ca.Replace(t, clientFiles, pki.Server, "b")
		if _, err := callRaft(t.Context(), d, server.addr); err != nil && !tooSlow(err.Error()) {
			t.Error(err)
		}
	}
	close(stop)
	callers.Wait()
	for line := range strings.Lines(log.all()) {
		if !tooSlow(line) {
			t.Errorf("the server says: %s", line)
		}
	}
	last, err := tls.LoadX509KeyPair(serverFiles.Cert, serverFiles.Key)
	if err != nil {
		t.Fatal(err)
	}
	if shown := certs.Server().Certificates[0].Leaf; !shown.Equal(last.Leaf) {
		t.Error("the last certificate is not in use")
	}
}

// tooSlow recognizes a connection that failed only because the machine is overloaded.
func tooSlow(text string) bool {
	for _, why := range []string{"deadline exceeded", "i/o timeout", "was not accepted within", "reset by peer", "EOF"} {
		if strings.Contains(text, why) {
			return true
		}
	}
	return false
}

// A protocol is offered while it has a listener, and closing the port ends its connections.
func TestListenersComeAndGo(t *testing.T) {
	ca := pkitest.New(t)
	certs := ca.Certs(t, pki.Server, "a")
	port, err := transport.Open(t.Context(),
		transport.Config{Addr: "127.0.0.1:0", Advertise: "127.0.0.3", Certs: certs, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	addr := port.Addr().(*net.TCPAddr)
	if !addr.IP.Equal(net.IPv4(127, 0, 0, 3)) || addr.Port == 0 {
		t.Errorf("others dial %s", addr)
	}
	bound := (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: addr.Port}).String()
	d := dialer(t, certs)
	if _, err := callRaft(t.Context(), d, bound); err == nil {
		t.Error("raft is spoken before anyone listens")
	}
	raft := port.Raft()
	if raft.Addr() != port.Addr() {
		t.Errorf("raft got the address %s", raft.Addr())
	}
	conn, err := d.Raft(t.Context(), "", bound)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := errors.Join(raft.Close(), raft.Close()); err != nil { // the connection was not taken
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("a connection that nobody takes stays")
	}
	if _, err := callRaft(t.Context(), d, bound); err == nil {
		t.Error("raft is spoken after its listener's end")
	}
	again := port.Raft()
	if conn, err = d.Raft(t.Context(), "", bound); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := errors.Join(port.Close(), port.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := again.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener gives %v after the end", err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("a connection that nobody took outlives the port")
	}
}

func TestAddressesThatNobodyCanDial(t *testing.T) {
	certs := pkitest.New(t).Certs(t, pki.Server, "a")
	for _, cfg := range []transport.Config{
		{Addr: "0.0.0.0:0"},
		{Addr: "127.0.0.1:0", Advertise: "host"},
		{Addr: "192.0.2.1:0"},
	} {
		cfg.Certs, cfg.Logger = certs, hclog.NewNullLogger()
		if port, err := transport.Open(t.Context(), cfg); err == nil {
			t.Errorf("%+v: %s", cfg, errors.Join(errors.New(port.Addr().String()), port.Close()))
		} else if !strings.Contains(err.Error(), "in the agent's configuration") {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// net/http accepts HTTP/1.1 from clients that ask for it.
func TestHTTP1(t *testing.T) {
	ca := pkitest.New(t)
	server := serve(t, ca.Certs(t, pki.Server, "a"), hclog.NewNullLogger())
	caller := ca.Certs(t, pki.CLI, "ops")
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   caller.Client(pki.Server, "", "http/1.1"),
	}}
	resp, err := client.Get("https://" + server.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || string(text) != "HTTP/1.1 pannier://dc1/cli/ops" {
		t.Errorf("got %q, %v", text, err)
	}
}
