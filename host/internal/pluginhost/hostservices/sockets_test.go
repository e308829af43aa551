package hostservices

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/sdk/frontend"
)

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
	start := func(plugin, process string, wanted ...Socket) map[string]*os.File {
		t.Helper()
		names, files, err := s.Listeners(t.Context(), plugin, process, wanted, true)
		if err != nil || len(names) != len(wanted) {
			t.Fatalf("%q, %v", names, err)
		}
		all := map[string]*os.File{}
		for n, name := range names {
			all[name] = files[n]
		}
		return all
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	first := []Socket{
		{Name: "a", Address: "unix://" + a, Mode: 0o640, Group: "0"}, {Name: "tcp", Address: "127.0.0.1:0"},
	}
	if names, _, err := s.Listeners(t.Context(), "page", "tried", first, false); err != nil || len(names) > 0 {
		t.Errorf("a file that is only tried has %q, %v", names, err)
	}
	one := start("page", "1", first...)
	must(s.Prove("page", "1", first))
	if info, err := os.Stat(a); err != nil || info.Mode() != fs.ModeSocket|0o640 || len(one) != 2 {
		t.Errorf("%v, %v, %v", one, info, err)
	}
	must(connects(t, a))
	must(s.Release("page", "1"))
	if again := start("page", "2", first...); again["a"] != one["a"] || again["tcp"] != one["tcp"] {
		t.Errorf("the next process gets %v instead of %v", again, one)
	}
	must(s.Prove("page", "2", first))
	if other := start("other", "x"); len(other) > 0 {
		t.Errorf("another plugin gets %v", other)
	}

	// A changed mode, and a socket that is not configured any more: both are as before until the process serves.
	second := []Socket{{Name: "a", Address: "unix://" + a, Mode: 0o600}}
	if now := start("page", "3", second...); now["a"] != one["a"] {
		t.Errorf("with another mode it is %v", now)
	}
	if info, err := os.Stat(a); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", info, err)
	}
	must(s.Prove("page", "3", second))
	if info, err := os.Stat(a); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if _, err := one["tcp"].Stat(); err != nil {
		t.Errorf("the socket of a process that has not ended: %v", err)
	}
	must(s.Release("page", "2"))
	if _, err := one["tcp"].Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the socket that is not configured any more: %v", err)
	}

	// What cannot be opened, or does not come to serve, leaves the others as they are.
	for process, wanted := range map[string][]Socket{
		"4": {{Name: "a", Address: "unix://" + b}, {Name: "x", Address: "unix://" + b}},
		"5": {{Name: "a", Address: "unix://" + b, Owner: "nobody-of-that-name"}},
	} {
		if _, _, err := s.Listeners(t.Context(), "page", process, wanted, true); !errors.Is(err, ErrListen) ||
			!strings.Contains(err.Error(), "on unix://"+b) {
			t.Errorf("an address that cannot be used: %v", err)
		}
	}
	start("page", "6", Socket{Name: "a", Address: "unix://" + b})
	must(connects(t, b))
	must(s.Release("page", "6"))
	if _, err := os.Lstat(b); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket of a process that did not serve: %v", err)
	}
	must(connects(t, a))
	must(s.Release("page", "3"))
	must(s.Forget("page"))
	if _, err := os.Lstat(a); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket of a forgotten plugin: %v", err)
	}
}

func TestOnlyFrontDoorsListen(t *testing.T) {
	for door, kinds := range map[bool]map[string]bool{
		true: {frontend.Kind: true, "storage.v1": false}, false: {frontend.Kind: true, "storage.v1": true},
	} {
		for kind, admitted := range kinds {
			if err := Admit(door, kind); (err == nil) != admitted {
				t.Errorf("a front door (%v) of kind %s: %v", door, kind, err)
			}
		}
	}
}
