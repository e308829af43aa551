package pki_test

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/host/internal/system/pki/pkitest"
)

func TestIssueRefuses(t *testing.T) {
	ca := pkitest.New(t)
	for name, c := range map[string]struct {
		r    pki.Request
		want string
	}{
		"role": {
			pki.Request{Identity: pki.Identity{Name: "a", Role: "root", DC: "dc1"}, Validity: time.Hour},
			`the role "root" is not one of server, node, cli`,
		},
		"name": {
			pki.Request{Identity: pki.Identity{Name: "a/../b", Role: pki.Node, DC: "dc1"}, Validity: time.Hour},
			`the name "a/../b" may have`,
		},
		"no name": {
			pki.Request{Identity: pki.Identity{Role: pki.Node, DC: "dc1"}, Validity: time.Hour},
			`the name "" may have`,
		},
		"datacenter": {
			pki.Request{Identity: pki.Identity{Name: "a", Role: pki.Node, DC: ".."}, Validity: time.Hour},
			`the datacenter ".." may have`,
		},
		"too long":     {pki.Request{Identity: nodeA, Validity: 1000 * time.Hour}, "ask for fewer days"},
		"over already": {pki.Request{Identity: nodeA, Validity: -time.Minute}, "has expired"},
	} {
		if _, err := ca.Issue(c.r); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWriteOverNothing(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "c"), filepath.Join(dir, "k")
	made, err := pki.NewAuthority(time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for _, taken := range []string{cert, key} {
		if err := os.WriteFile(taken, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := made.Write(cert, key); err == nil || !strings.Contains(err.Error(), taken+" is there already") {
			t.Errorf("%s: %v", taken, err)
		}
		entries, _ := os.ReadDir(dir)
		if text, err := os.ReadFile(taken); err != nil || string(text) != "mine" || len(entries) != 1 {
			t.Errorf("%s is %q, %v, beside %v", taken, text, err, entries)
		}
		if err := os.Remove(taken); err != nil {
			t.Fatal(err)
		}
	}
	if err := made.Write(cert, key); err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]os.FileMode{cert: 0o644, key: 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
}

func TestDescribe(t *testing.T) {
	ca := pkitest.New(t)
	issued, err := ca.Issue(pki.Request{
		Identity: nodeA, DNS: []string{"web"}, IP: []net.IP{net.IPv4(192, 0, 2, 1)},
		Validity: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	d, err := pki.Describe(write(t, "cert.pem", issued.Cert))
	if err != nil || d.Identity != nodeA || d.Authority || d.Problem != "" ||
		!slices.Equal(d.DNS, []string{"node.dc1.pannier", "web", "localhost"}) ||
		!slices.Equal(d.IP, []string{"192.0.2.1", "127.0.0.1", "::1"}) {
		t.Errorf("got %+v, %v", d, err)
	}
	d, err = pki.Describe(ca.CertFile)
	if err != nil || !d.Authority || d.Identity != (pki.Identity{}) || d.Problem != "" || d.Subject != d.Issuer {
		t.Errorf("got %+v, %v", d, err)
	}
	files := ca.Files(t, pki.Node, "a")
	ca.Expire(t, files)
	if d, err = pki.Describe(files.Cert); err != nil || d.Problem != "it has expired" {
		t.Errorf("got %+v, %v", d, err)
	}
}
