package secrets

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
)

func openFiles(t *testing.T, dir string, shared bool) *Sealer {
	t.Helper()
	s, err := OpenFiles(Files{
		First: filepath.Join(dir, "secrets.key"), Dir: filepath.Join(dir, "secrets.keys"),
		Shared: shared,
	})
	check.NoError(t, err)
	return s
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	check.NoError(t, err)
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func use(t *testing.T, s *Sealer, active string, named, removed []string, missing ...string) {
	t.Helper()
	got, err := s.Use(active, named, removed)
	if err != nil || !slices.Equal(got, missing) {
		t.Fatalf("missing are %v, %v, want %v", got, err, missing)
	}
}

// A key can be used for unsealing until the ledger removes it, and the key files match the ledger.
func TestKeysFollowTheLedger(t *testing.T) {
	dir := t.TempDir()
	s := openFiles(t, dir, false)
	first := s.First()
	before, named, err := s.Seal(plain, mysql)
	if err != nil || named != "" || KeyOf(before) != first {
		t.Fatalf("sealed with %q, named %q, %v", KeyOf(before), named, err)
	}

	key := NewKey()
	if err := s.Offer(NewKey()); err != nil { // one that is never named
		t.Fatal(err)
	}
	check.NoError(t, s.Offer(key))
	s = openFiles(t, dir, false) // after a restart
	use(t, s, first, []string{first, key.ID()}, nil)
	if got := names(t, filepath.Join(dir, "secrets.keys")); !slices.Equal(got, []string{key.ID() + ".key"}) {
		t.Fatalf("files: %v", got)
	}
	use(t, s, key.ID(), []string{first, key.ID()}, nil)
	after, named, err := s.Reseal(before, mysql)
	if err != nil || named != key.ID() || KeyOf(after) != key.ID() {
		t.Fatalf("sealed with %q, named %q, %v", KeyOf(after), named, err)
	}
	if open, err := s.Unseal(before, mysql); err != nil || !maps.Equal(open, plain) {
		t.Fatalf("the old key opens %v, %v", open, err)
	}
	use(t, s, key.ID(), []string{key.ID()}, []string{first})
	if _, err := os.Stat(filepath.Join(dir, "secrets.key")); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the old key's file: %v", err)
	}
	s = openFiles(t, dir, false)
	use(t, s, key.ID(), []string{key.ID()}, []string{first})
	if open, err := s.Unseal(after, mysql); err != nil || !maps.Equal(open, plain) {
		t.Fatalf("the new key opens %v, %v", open, err)
	}
	if _, err := s.Unseal(before, mysql); !errors.Is(err, ErrKey) {
		t.Fatalf("the old key opens: %v", err)
	}
}

// A key that was removed may be named again, such as by a ledger that was restored.
func TestNamedKeyIsKept(t *testing.T) {
	dir := t.TempDir()
	s := openFiles(t, dir, false)
	first, key := s.First(), NewKey()
	check.NoError(t, s.Add(key))
	use(t, s, key.ID(), []string{first, key.ID()}, []string{first})
	if _, err := os.Stat(filepath.Join(dir, "secrets.key")); err != nil {
		t.Error(err)
	}
	if _, has := s.Get(first); !has {
		t.Error("it is forgotten")
	}
}

// A cluster's server does not seal before the ledger names a key that it has.
func TestServerOfAClusterWaitsForTheLedger(t *testing.T) {
	dir := t.TempDir()
	s := openFiles(t, dir, true)
	key := NewKey()
	sealing := func(want error) {
		t.Helper()
		if _, _, err := s.Seal(plain, mysql); !errors.Is(err, want) {
			t.Fatalf("got %v, want %v", err, want)
		}
	}
	sealing(ErrNoKey)
	use(t, s, key.ID(), []string{key.ID()}, nil, key.ID())
	sealing(ErrNoKey)
	path := filepath.Join(dir, "secrets.keys", key.ID()+".key") // an operator puts it there
	check.NoError(t, os.WriteFile(path, key.Material(), 0o600))
	use(t, s, key.ID(), []string{key.ID()}, nil)
	sealing(nil)

	for _, bad := range []struct {
		mode os.FileMode
		key  Key
		want string
	}{{0o644, key, "chmod 0600"}, {0o600, NewKey(), "name the file"}} {
		check.NoError(t, errors.Join(os.WriteFile(path, bad.key.Material(), bad.mode), os.Chmod(path, bad.mode)))
		if _, err := OpenFiles(Files{
			First: filepath.Join(dir, "secrets.key"), Dir: filepath.Dir(path),
			Shared: true,
		}); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("a bad file: %v, want %q", err, bad.want)
		}
	}
}
