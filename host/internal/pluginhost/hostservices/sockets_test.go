package hostservices

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/internal/unixsocket"
	"github.com/pannier/pannier/sdk/frontend"
)

// listening returns the sockets that the next process of a plugin gets, by name.
func listening(t *testing.T, s *Services, plugin string) map[string]*os.File {
	t.Helper()
	names, files, err := s.Listeners(t.Context(), plugin, true)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*os.File{}
	for n, name := range names {
		all[name] = files[n]
	}
	return all
}

func connects(t *testing.T, path string) error {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", path)
	if err == nil {
		err = conn.Close()
	}
	return err
}

func TestListeningSockets(t *testing.T) {
	s, dir := serve(t, openJournal(t, t.TempDir())), t.TempDir()
	a, b := filepath.Join(dir, "new/a"), filepath.Join(dir, "b")
	page := func(all ...Socket) map[string][]Socket { return map[string][]Socket{"page": all} }
	s.Listen(page(
		Socket{Name: "a", Address: "unix://" + a, Mode: 0o640, Group: "0"},
		Socket{Name: "tcp", Address: "127.0.0.1:0"},
	))
	if names, _, err := s.Listeners(t.Context(), "page", false); err != nil || len(names) > 0 {
		t.Errorf("a file that is only tried has %q, %v", names, err)
	}
	first := listening(t, s, "page")
	if info, err := os.Stat(a); err != nil || info.Mode() != fs.ModeSocket|0o640 || len(first) != 2 {
		t.Errorf("%v, %v, %v", first, info, err)
	}
	if err := connects(t, a); err != nil {
		t.Error(err)
	}
	if again := listening(t, s, "page"); again["a"] != first["a"] || again["tcp"] != first["tcp"] {
		t.Errorf("the next process gets %v instead of %v", again, first)
	}
	if other := listening(t, s, "other"); len(other) > 0 {
		t.Errorf("another plugin gets %v", other)
	}

	// A changed mode, a changed address, and a socket that is not configured any more.
	s.Listen(page(Socket{Name: "a", Address: "unix://" + a, Mode: 0o600}))
	if now := listening(t, s, "page"); now["a"] != first["a"] || len(now) != 1 {
		t.Errorf("with another mode, and without tcp, it is %v", now)
	}
	if info, err := os.Stat(a); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if _, err := first["tcp"].Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the socket that is not configured any more: %v", err)
	}
	s.Listen(page(Socket{Name: "a", Address: "unix://" + b, Mode: 0o600}))
	if now := listening(t, s, "page"); now["a"] == first["a"] {
		t.Error("with another address, it is the same socket")
	}
	if err := connects(t, b); err != nil {
		t.Error(err)
	}

	// What cannot be opened leaves the others as they are.
	s.Listen(page(Socket{Name: "a", Address: "unix://" + b, Mode: 0o600}, Socket{Name: "x", Address: "unix://" + b}))
	if _, _, err := s.Listeners(t.Context(), "page", true); !errors.Is(err, unixsocket.ErrAnswers) ||
		!strings.Contains(err.Error(), `"x" on unix://`+b) {
		t.Errorf("an address that is taken: %v", err)
	}
	if err := connects(t, b); err != nil {
		t.Error(err)
	}
	if err := s.Forget("page"); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(b); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket of a forgotten plugin: %v", err)
	}
}

func TestOnlyFrontDoorsListen(t *testing.T) {
	s := serve(t, openJournal(t, t.TempDir()))
	s.Listen(map[string][]Socket{"page": nil})
	for plugin, kinds := range map[string]map[string]bool{
		"page": {frontend.Kind: true, "storage.v1": false}, "other": {frontend.Kind: true, "storage.v1": true},
	} {
		for kind, admitted := range kinds {
			if err := s.Admit(plugin, kind); (err == nil) != admitted {
				t.Errorf("%s of kind %s: %v", plugin, kind, err)
			}
		}
	}
}
