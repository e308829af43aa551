package transport_test

import (
	"crypto/tls"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/host/internal/system/pki/pkitest"
)

// mayUse has the protocols that a certificate of each role may use.
var mayUse = map[pki.Role][]string{
	pki.Server: protocols, pki.Node: protocols[1:], pki.CLI: protocols[2:],
}

var roles = []pki.Role{pki.Server, pki.Node, pki.CLI}

// FuzzALPN offers any protocols with a certificate of each role. Only those that the role may use are used.
func FuzzALPN(f *testing.F) {
	ca := pkitest.New(f)
	server := serve(f, ca.Certs(f, pki.Server, "a"), hclog.NewNullLogger())
	for n := range roles {
		for _, p := range protocols {
			f.Add(byte(n), p)
		}
		f.Add(byte(n), "h3\npannier-raft/2\npannier-raft/1")
	}
	f.Fuzz(func(t *testing.T, n byte, offered string) {
		role := roles[int(n)%len(roles)]
		cfg := ca.Certs(t, role, "b").Client(pki.Server, "")
		cfg.NextProtos = strings.Split(offered, "\n")
		used, err := use(server.addr, cfg)
		if err == nil && (!slices.Contains(mayUse[role], used) || !slices.Contains(cfg.NextProtos, used)) {
			t.Errorf("a %s that offers %q uses %q", role, cfg.NextProtos, used)
		}
		if may := slices.ContainsFunc(cfg.NextProtos, func(p string) bool { return p == protocols[2] }); may &&
			len(cfg.NextProtos) == 1 && err != nil {
			t.Errorf("a %s may not use %s: %v", role, protocols[2], err)
		}
	})
}

// use connects, and returns the protocol once the other end has accepted the certificate.
func use(addr string, cfg *tls.Config) (protocol string, err error) {
	raw, err := net.Dial("tcp", addr)
	if err != nil {
		return "", err
	}
	defer raw.Close()
	_ = raw.SetDeadline(time.Now().Add(timeout))
	conn := tls.Client(raw, cfg)
	if err := conn.Handshake(); err != nil {
		return "", err
	}
	protocol = conn.ConnectionState().NegotiatedProtocol
	if err := conn.CloseWrite(); err != nil {
		return "", err
	}
	// With TLS 1.3 a refusal is the first thing that the client reads.
	if _, err := conn.Read(make([]byte, 1)); err != nil && strings.Contains(err.Error(), "tls:") {
		return "", err
	}
	return protocol, nil
}

// FuzzPort sends any bytes to the port: instead of a handshake, and after one, on each protocol. The port ends the
// connection, and still serves others.
func FuzzPort(f *testing.F) {
	ca := pkitest.New(f)
	server := serve(f, ca.Certs(f, pki.Server, "a"), hclog.NewNullLogger())
	own := ca.Certs(f, pki.Server, "b")
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	for n := range len(protocols) + 1 {
		for _, bytes := range []string{
			"", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", preface,
			preface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00",
			preface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x04\x01\x05\x00\x00\x00\x01\x82\x86\x84\x41",
			preface + "\x00\xff\xff\x00\x00\x00\x00\x00\x01", "POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
		} {
			f.Add(byte(n), []byte(bytes))
		}
	}
	f.Fuzz(func(t *testing.T, n byte, bytes []byte) {
		raw, err := net.Dial("tcp", server.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		_ = raw.SetDeadline(time.Now().Add(timeout))
		conn := interface {
			net.Conn
			CloseWrite() error
		}(raw.(*net.TCPConn))
		if at := int(n) % (len(protocols) + 1); at < len(protocols) {
			conn = tls.Client(raw, own.Client(pki.Server, "", protocols[at]))
		}
		_, _ = conn.Write(bytes) // fails when the port has closed it already
		_ = conn.CloseWrite()
		if _, err := io.Copy(io.Discard, conn); err != nil && strings.Contains(err.Error(), "timeout") {
			t.Errorf("the connection is not ended: %v", err)
		}
		if _, err := use(server.addr, own.Client(pki.Server, "", protocols[2])); err != nil {
			t.Errorf("nobody is served any more: %v", err)
		}
	})
}
