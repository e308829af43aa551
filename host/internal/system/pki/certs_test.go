package pki_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/host/internal/system/pki/pkitest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	serverA = pki.Identity{Name: "a", Role: pki.Server, DC: pkitest.DC}
	serverB = pki.Identity{Name: "b", Role: pki.Server, DC: pkitest.DC}
	nodeA   = pki.Identity{Name: "a", Role: pki.Node, DC: pkitest.DC}
)

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

func (l *logged) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

func (l *logged) logger() hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Output: l, Level: hclog.Info})
}

// handshake returns the errors of both sides of one connection, and who each saw.
func handshake(t *testing.T, client, server *tls.Config) (errs [2]error) {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	deadline := time.Now().Add(time.Minute)
	_, _ = a.SetDeadline(deadline), b.SetDeadline(deadline)
	done := make(chan error)
	go func() {
		conn := tls.Server(b, server)
		err := conn.Handshake()
		if err == nil {
			_, err = conn.Write([]byte{1})
		}
		if err != nil {
			_ = b.Close()
		}
		done <- err
	}()
	conn := tls.Client(a, client)
	if errs[0] = conn.Handshake(); errs[0] == nil {
		_, errs[0] = conn.Read(make([]byte, 1)) // TLS 1.3 tells a client here that it is refused
	}
	if errs[0] != nil {
		_ = a.Close()
	}
	errs[1] = <-done
	return errs
}

func TestBothEndsSayWhoTheyAre(t *testing.T) {
	ca, other := pkitest.New(t), pkitest.New(t)
	server, node := ca.Certs(t, pki.Server, "a"), ca.Certs(t, pki.Node, "a")
	for name, c := range map[string]struct {
		client, server *tls.Config
		want           string // of either end's error; empty: they speak
	}{
		"server to server":   {server.Client(pki.Server, "a"), server.Server(), ""},
		"any name":           {server.Client(pki.Server, ""), server.Server(), ""},
		"server to node":     {server.Client(pki.Node, "a"), node.Server(), ""},
		"node to server":     {node.Client(pki.Server, "a"), server.Server(), ""},
		"a node as a server": {server.Client(pki.Server, ""), node.Server(), "server.dc1.pannier"},
		"a server as a node": {server.Client(pki.Node, ""), server.Server(), "node.dc1.pannier"},
		"another name": {
			server.Client(pki.Server, "b"), server.Server(),
			`pannier://dc1/server/a answers, and not "b"`,
		},
		"a stranger calls": {
			other.Certs(t, pki.Server, "a").Client(pki.Server, ""), server.Server(),
			"unknown authority",
		},
		"a stranger answers": {
			server.Client(pki.Server, ""), other.Certs(t, pki.Server, "a").Server(),
			"unknown authority",
		},
		"nobody calls":         {withoutCert(server.Client(pki.Server, "")), server.Server(), "didn't provide a certificate"},
		"no protocol":          {server.Client(pki.Server, "", "x"), server.Server(), "speaks none of [x]"},
		"another protocol":     {server.Client(pki.Server, "", "x"), server.Server("y"), "no application protocol"},
		"a cli answers":        {server.Client(pki.Server, ""), ca.Certs(t, pki.CLI, "a").Server(), "server.dc1.pannier"},
		"public with none":     {withoutCert(server.Client(pki.Server, "")), server.Public(), ""},
		"public with a good":   {node.Client(pki.Server, ""), server.Public(), ""},
		"public with stranger": {other.Certs(t, pki.CLI, "a").Client(pki.Server, ""), server.Public(), "unknown authority"},
		"old TLS":              {old(node.Client(pki.Server, "")), server.Server(), "protocol version"},
	} {
		errs := handshake(t, c.client, c.server)
		if err := errors.Join(errs[:]...); c.want == "" && err != nil || c.want != "" &&
			(err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func withoutCert(cfg *tls.Config) *tls.Config {
	cfg.Certificates = nil
	return cfg
}

func old(cfg *tls.Config) *tls.Config {
	cfg.MinVersion, cfg.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	return cfg
}

func TestAnotherDatacenter(t *testing.T) {
	ca := pkitest.New(t)
	far, err := ca.Issue(pki.Request{
		Identity: pki.Identity{Name: "f", Role: pki.Server, DC: "dc2"},
		DNS:      []string{"server.dc1.pannier"}, Validity: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(far.Cert, far.Key)
	if err != nil {
		t.Fatal(err)
	}
	near := ca.Certs(t, pki.Server, "a")
	calling, called := near.Client(pki.Server, ""), near.Server()
	calling.Certificates = []tls.Certificate{pair}
	errs := handshake(t, calling, called)
	if err := errors.Join(errs[:]...); err == nil || !strings.Contains(err.Error(), "another datacenter") {
		t.Errorf("a caller of another datacenter: %v", err)
	}
	calling, called = near.Client(pki.Server, ""), near.Server()
	called.Certificates = []tls.Certificate{pair}
	errs = handshake(t, calling, called)
	if err := errors.Join(errs[:]...); err == nil || !strings.Contains(err.Error(), "another datacenter") {
		t.Errorf("a server of another datacenter: %v", err)
	}
}

func TestFilesThatCannotBeUsed(t *testing.T) {
	ca, other := pkitest.New(t), pkitest.New(t)
	const makeOne = "pannier tls cert create -server -name a -dc dc1"
	for name, c := range map[string]struct {
		spoil func(f *pki.Files)
		want  []string
	}{
		"no authority":   {func(f *pki.Files) { f.CA += "x" }, []string{"ca.pemx is not there", "pannier tls ca create"}},
		"no certificate": {func(f *pki.Files) { f.Cert += "x" }, []string{"cert.pemx is not there", makeOne}},
		"no key":         {func(f *pki.Files) { f.Key += "x" }, []string{"key.pemx is not there", makeOne}},
		"authority is empty": {
			func(f *pki.Files) { f.CA = write(t, "ca.pem", nil) },
			[]string{"ca.pem: no certificate in PEM"},
		},
		"authority's key": {func(f *pki.Files) { f.CA = ca.KeyFile }, []string{"it has a PRIVATE KEY"}},
		"no authority's": {
			func(f *pki.Files) { f.CA = f.Cert },
			[]string{"is none of an authority", "pannier tls ca create"},
		},
		"another authority": {
			func(f *pki.Files) { f.CA = other.CertFile },
			[]string{"is not good for the authority", "unknown authority", makeOne},
		},
		"another's key": {
			func(f *pki.Files) { f.Key = ca.Files(t, pki.Server, "a").Key },
			[]string{f0, "private key does not match", makeOne},
		},
		"rubbish": {
			func(f *pki.Files) { f.Cert = write(t, "cert.pem", []byte("rubbish")) },
			[]string{"failed to find any PEM data", makeOne},
		},
		"another name": {
			func(f *pki.Files) { *f = ca.Files(t, pki.Server, "b") },
			[]string{"is that of pannier://dc1/server/b, and this agent is pannier://dc1/server/a", makeOne},
		},
		"another role": {
			func(f *pki.Files) { *f = ca.Files(t, pki.Node, "a") },
			[]string{"is that of pannier://dc1/node/a", makeOne},
		},
		"authority's own": {
			func(f *pki.Files) { f.Cert, f.Key = ca.CertFile, ca.KeyFile },
			[]string{"names no host of Pannier", makeOne},
		},
		"everybody's key": {
			func(f *pki.Files) { _ = os.Chmod(f.Key, 0o644) },
			[]string{"can be used by every user", "chmod 600 "},
		},
		"expired": {func(f *pki.Files) { ca.Expire(t, *f) }, []string{"has expired", makeOne}},
	} {
		files := ca.Files(t, pki.Server, "a")
		c.spoil(&files)
		certs, err := pki.Load(files, serverA, hclog.NewNullLogger())
		if err == nil {
			t.Errorf("%s: it is loaded: %v", name, certs.Identity())
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q is not in %v", name, want, err)
			}
		}
		if strings.Contains(err.Error(), "BEGIN") {
			t.Errorf("%s: the error shows a file: %v", name, err)
		}
	}
}

const f0 = "cert.pem and its key"

func write(t *testing.T, name string, text []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func issue(t *testing.T, ca pkitest.Authority, r pki.Request) pki.Issued {
	t.Helper()
	issued, err := ca.Issue(r)
	if err != nil {
		t.Fatal(err)
	}
	return issued
}

func put(t *testing.T, files pki.Files, issued pki.Issued) {
	t.Helper()
	for path, text := range map[string][]byte{files.Cert: issued.Cert, files.Key: issued.Key} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A new certificate is used from the next connection on. An unusable one leaves the old one in use and is logged once.
func TestReload(t *testing.T) {
	ca := pkitest.New(t)
	files, log := ca.Files(t, pki.Server, "a"), &logged{}
	certs, err := pki.Load(files, serverA, log.logger())
	if err != nil {
		t.Fatal(err)
	}
	shown := func() []byte { return certs.Server().Certificates[0].Certificate[0] }
	first := shown()
	ca.Replace(t, files, pki.Server, "a")
	second := shown()
	if bytes.Equal(first, second) {
		t.Fatal("the old certificate is shown after it was replaced")
	}
	// In place, within the resolution of the clock, and of the same size.
	var written []time.Time
	for _, path := range []string{files.Cert, files.Key} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		written = append(written, info.ModTime())
	}
	alike := issue(t, ca, pki.Request{Identity: serverA, Validity: time.Hour})
	for len(alike.Cert) != len(read(t, files.Cert)) { // a signature has more or fewer bytes
		alike = issue(t, ca, pki.Request{Identity: serverA, Validity: time.Hour})
	}
	put(t, files, alike)
	for i, path := range []string{files.Cert, files.Key} {
		if err := os.Chtimes(path, written[i], written[i]); err != nil {
			t.Fatal(err)
		}
	}
	if third := shown(); bytes.Equal(second, third) {
		t.Fatal("the old certificate is shown after it was written over")
	}
	for name, spoil := range map[string]func(){
		"rubbish":       func() { _ = os.WriteFile(files.Cert, []byte("rubbish"), 0o600) },
		"another's key": func() { put(t, files, pki.Issued{Cert: read(t, ca.CertFile), Key: read(t, files.Key)}) },
		"another host":  func() { put(t, files, issue(t, ca, pki.Request{Identity: serverB, Validity: time.Hour})) },
		"another role":  func() { put(t, files, issue(t, ca, pki.Request{Identity: nodeA, Validity: time.Hour})) },
		"expired":       func() { ca.Expire(t, files) },
		"nothing":       func() { _ = os.Remove(files.Key) },
	} {
		ca.Replace(t, files, pki.Server, "a")
		second = shown()
		before := log.count("[WARN]")
		spoil()
		for range 5 {
			if !bytes.Equal(second, shown()) {
				t.Fatalf("%s: another certificate is shown", name)
			}
		}
		if told := log.count("[WARN]") - before; told != 1 {
			t.Errorf("%s: told %d times", name, told)
		}
	}
	ca.Replace(t, files, pki.Server, "a")
	if bytes.Equal(second, shown()) {
		t.Error("a good certificate after bad ones is not used")
	}
	if log.count("PRIVATE") != 0 {
		t.Error("a key is in the log")
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// The authority is replaced without a failed connection: first both are trusted, then only the new one.
func TestChangeOfAuthority(t *testing.T) {
	before, after := pkitest.New(t), pkitest.New(t)
	both := write(t, "ca.pem", append(read(t, before.CertFile), read(t, after.CertFile)...))
	load := func(ca pkitest.Authority, trusted string, id pki.Identity) *pki.Certs {
		files := ca.Files(t, id.Role, id.Name)
		files.CA = trusted
		certs, err := pki.Load(files, id, hclog.NewNullLogger())
		if err != nil {
			t.Fatal(err)
		}
		return certs
	}
	for name, c := range map[string]struct {
		a, b *pki.Certs
		ok   bool
	}{
		"one believes both":     {load(before, before.CertFile, serverA), load(before, both, serverB), true},
		"one is of the new":     {load(before, both, serverA), load(after, both, serverB), true},
		"one believes the new":  {load(after, both, serverA), load(after, after.CertFile, serverB), true},
		"the old is out":        {load(before, both, serverA), load(after, after.CertFile, serverB), false},
		"the new is not in yet": {load(after, both, serverA), load(before, before.CertFile, serverB), false},
	} {
		for _, ends := range [][2]*pki.Certs{{c.a, c.b}, {c.b, c.a}} {
			errs := handshake(t, ends[0].Client(pki.Server, ""), ends[1].Server())
			if err := errors.Join(errs[:]...); (err == nil) != c.ok {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestExpiryWarning(t *testing.T) {
	ca := pkitest.New(t) // its certificates end within 30 days
	log := &logged{}
	certs, err := pki.Load(ca.Files(t, pki.Server, "a"), serverA, log.logger())
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		certs.Server()
	}
	if told := log.count("expires soon"); told != 1 {
		t.Errorf("told %d times", told)
	}
	if left := time.Until(certs.NotAfter()); left <= 0 || left > 24*time.Hour {
		t.Errorf("it ends in %s", left)
	}
}
