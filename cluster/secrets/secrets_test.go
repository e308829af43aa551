package secrets

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
)

var (
	plain = map[string]string{"username": "admin", "password": "correct horse"}
	mysql = ForVolume("default", "mysql")
)

func open(t *testing.T) *Sealer {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "secrets.key"))
	check.NoError(t, err)
	return s
}

func seal(t *testing.T, s *Sealer) []byte {
	t.Helper()
	sealed, _, err := s.Seal(plain, mysql)
	check.NoError(t, err)
	return sealed
}

func TestRoundTrip(t *testing.T) {
	s := open(t)
	sealed := seal(t, s)
	for k, v := range plain {
		if bytes.Contains(sealed, []byte(k)) || bytes.Contains(sealed, []byte(v)) {
			t.Fatalf("%q or its value is readable in the sealed bytes", k)
		}
	}
	if bytes.Equal(sealed, seal(t, s)) {
		t.Fatal("the same secrets seal to the same bytes: the nonce is not random")
	}
	again, err := Open(s.path) // as after a restart
	check.NoError(t, err)
	got, err := again.Unseal(sealed, mysql)
	if err != nil || !maps.Equal(got, plain) {
		t.Fatalf("got %d secrets, %v", len(got), err)
	}
}

func TestNoSecretsSealToNothing(t *testing.T) {
	s := open(t)
	sealed, _, err := s.Seal(map[string]string{}, mysql)
	if err != nil || sealed != nil {
		t.Fatalf("got %x, %v", sealed, err)
	}
	if got, err := s.Unseal(nil, mysql); err != nil || got != nil {
		t.Fatalf("got %v, %v", got, err)
	}
}

func TestTamperingIsSeen(t *testing.T) {
	s := open(t)
	sealed := seal(t, s)
	for i := range sealed {
		for _, bit := range []byte{0x01, 0x80} {
			bad := bytes.Clone(sealed)
			bad[i] ^= bit
			want := ErrDamaged
			if i >= 1 && i < headerSize {
				want = ErrKey
			}
			if _, err := s.Unseal(bad, mysql); !errors.Is(err, want) {
				t.Fatalf("byte %d changed: got %v, want %v", i, err, want)
			}
		}
	}
	for n := 1; n < len(sealed); n++ {
		if _, err := s.Unseal(sealed[:n], mysql); !errors.Is(err, ErrDamaged) {
			t.Fatalf("cut to %d bytes: got %v", n, err)
		}
	}
	if _, err := s.Unseal(append(bytes.Clone(sealed), 0), mysql); !errors.Is(err, ErrDamaged) {
		t.Fatalf("a byte added: got %v", err)
	}
}

func TestSecretsStayWithTheirVolume(t *testing.T) {
	s := open(t)
	sealed := seal(t, s)
	for _, other := range [][]byte{
		nil, ForVolume("default", "mysql2"), ForVolume("prod", "mysql"),
		ForVolume("", "default\x00mysql"),
	} {
		if _, err := s.Unseal(sealed, other); !errors.Is(err, ErrDamaged) {
			t.Fatalf("unsealed for %q: %v", other, err)
		}
	}
}

func TestAnotherKeyIsNamed(t *testing.T) {
	s, other := open(t), open(t)
	_, err := other.Unseal(seal(t, s), mysql)
	if !errors.Is(err, ErrKey) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{s.KeyID(), other.KeyID(), other.path} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %s: %v", want, err)
		}
	}
}

func TestKeyIsNeverPrinted(t *testing.T) {
	s := open(t)
	key, err := os.ReadFile(s.path)
	check.NoError(t, err)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		got := fmt.Sprintf(verb, s)
		if strings.Contains(got, fmt.Sprintf("%x", key[:4])) || strings.Contains(got, string(key[:4])) {
			t.Errorf("%s prints the key: %s", verb, got)
		}
	}
	if got := fmt.Sprintf("%+v", s); got != s.String() {
		t.Errorf("got %s", got)
	}
}

func TestKeyFile(t *testing.T) {
	s := open(t)
	info, err := os.Stat(s.path)
	check.NoError(t, err)
	if info.Mode() != 0o600 || info.Size() != keySize {
		t.Fatalf("key file has mode %v and %d bytes", info.Mode(), info.Size())
	}
	left, err := os.ReadDir(filepath.Dir(s.path))
	if err != nil || len(left) != 1 {
		t.Fatalf("files beside the key: %v, %v", left, err)
	}
}

func TestBadKeyFileIsRefused(t *testing.T) {
	write := func(mode os.FileMode, size int) func(string) error {
		return func(path string) error {
			if err := os.WriteFile(path, make([]byte, size), mode); err != nil {
				return err
			}
			return os.Chmod(path, mode)
		}
	}
	for _, tt := range []struct {
		name, want string
		make       func(path string) error
	}{
		{"group can read", "chmod 0600", write(0o640, keySize)},
		{"others can read", "chmod 0600", write(0o604, keySize)},
		{"others can write", "chmod 0600", write(0o602, keySize)},
		{"too short", "16 bytes, want 32", write(0o600, 16)},
		{"too long", "33 bytes, want 32", write(0o600, 33)},
		{"empty", "0 bytes, want 32", write(0o600, 0)},
		{"a directory", "not a regular file", func(p string) error { return os.Mkdir(p, 0o700) }},
		{"a link", "symbolic link", func(p string) error {
			if err := write(0o600, keySize)(p + ".real"); err != nil {
				return err
			}
			return os.Symlink(p+".real", p)
		}},
		{"another's", "belongs to uid 65534", func(p string) error {
			if os.Geteuid() != 0 {
				t.Skip("needs root to give the file away; not covered: a key file of another user")
			}
			if err := write(0o600, keySize)(p); err != nil {
				return err
			}
			return os.Chown(p, 65534, 65534)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "secrets.key")
			check.NoError(t, tt.make(path))
			_, err := Open(path)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), path) {
				t.Fatalf("got %v, want %q and the path in it", err, tt.want)
			}
		})
	}
}

func TestMissingDirectoryIsAnError(t *testing.T) {
	if _, err := Open(filepath.Join(t.TempDir(), "none", "secrets.key")); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("got %v", err)
	}
}

// Two agents that start on one data directory at once must end with one key.
func TestConcurrentOpensAgreeOnOneKey(t *testing.T) {
	for range 30 {
		path := filepath.Join(t.TempDir(), "secrets.key")
		ids := make([]string, 8)
		start := make(chan struct{})
		var wg sync.WaitGroup
		for i := range ids {
			wg.Go(func() {
				<-start
				s, err := Open(path)
				if err != nil {
					t.Error(err)
					return
				}
				ids[i] = s.KeyID()
			})
		}
		close(start)
		wg.Wait()
		for _, id := range ids {
			if id != ids[0] {
				t.Fatalf("different keys: %v", ids)
			}
		}
	}
}
