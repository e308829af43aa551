package managed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sync"

	"github.com/pannier/pannier/host/internal/system/program"
	"github.com/pannier/pannier/internal/atomicfile"
)

// Store holds copies of programs, at <sha256>/<name> in a directory. A process runs from its copy: the file that it was
// made of can be overwritten at any time, and what was hashed is what runs.
type Store struct {
	// Sync puts a file on the disk: atomicfile.Sync, but in tests.
	Sync func(path string) error

	dir  string
	mu   sync.Mutex
	pins map[string]int // copies that a start is about to use
}

// NewStore makes a store of a directory, which must be there when a copy is added.
func NewStore(dir string) *Store {
	return &Store{dir: dir, Sync: atomicfile.Sync, pins: map[string]int{}}
}

// Admit returns why a copy of the file src must not run, or is nil. temp has its contents; other files that belong
// to it may be written beside kept, where it is going to be. Of a copy that is kept already all three are the same.
type Admit func(src, temp, kept, sha string) error

func (admit Admit) of(src, temp, kept, sha string) error {
	if admit == nil {
		return nil
	}
	return admit(src, temp, kept, sha)
}

// Binary is a program to start a process from.
type Binary struct {
	Path   string
	SHA256 string // 64 hex digits; empty: it is no copy, but the file itself
}

// ErrChecksum means that a program has another checksum than it must have.
var ErrChecksum = errors.New("checksum mismatch")

// Add copies a program. The copy is kept at least until unpin is called, and survives a loss of power.
func (s *Store) Add(src, name string, admit Admit) (bin Binary, unpin func(), err error) {
	temp, sha, err := program.Copy(src, s.dir)
	if err != nil {
		return Binary{}, nil, err
	}
	defer os.Remove(temp) // already gone if the rename was reached
	pinned := s.pin(sha)
	defer func() {
		if err != nil {
			pinned()
		}
	}()
	bin = Binary{Path: s.path(sha, name), SHA256: sha}
	if err := os.MkdirAll(filepath.Dir(bin.Path), 0o711); err != nil { // it may run as another user
		return bin, nil, fmt.Errorf("keep a copy of %s: %w", src, err)
	}
	if err := admit.of(src, temp, bin.Path, sha); err != nil {
		_ = os.Remove(filepath.Dir(bin.Path)) // unless a copy is in it
		return bin, nil, err
	}
	if err := s.place(temp, bin.Path); err != nil {
		return bin, nil, fmt.Errorf("keep a copy of %s: %w", src, err)
	}
	return bin, pinned, nil
}

// Use returns a copy that is kept already, after hashing it again.
func (s *Store) Use(sha, name string, admit Admit) (bin Binary, unpin func(), err error) {
	unpin = s.pin(sha)
	bin = Binary{Path: s.path(sha, name), SHA256: sha}
	got, err := program.Sum(bin.Path)
	if err == nil && got != sha {
		err = fmt.Errorf("%w: %s has sha256:%s", ErrChecksum, bin.Path, got)
	}
	if err == nil {
		err = admit.of(bin.Path, bin.Path, bin.Path, sha)
	}
	if err != nil {
		unpin()
		return Binary{}, nil, fmt.Errorf("use the copy of %q: %w", name, err)
	}
	return bin, unpin, nil
}

// Has reports whether a copy is kept.
func (s *Store) Has(sha, name string) bool {
	_, err := os.Stat(s.path(sha, name))
	return sha != "" && err == nil
}

func (s *Store) path(sha, name string) string { return filepath.Join(s.dir, sha, name) }

// place keeps a copy.
func (s *Store) place(temp, path string) error {
	if err := s.Sync(temp); err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		return err
	}
	return errors.Join(atomicfile.SyncDir(filepath.Dir(path)), atomicfile.SyncDir(s.dir))
}

func (s *Store) pin(sha string) (unpin func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pins[sha]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.pins[sha]--; s.pins[sha] == 0 {
			delete(s.pins, sha)
		}
	})
}

var hexSum = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{64}$`) })

// IsSum reports whether a text is the checksum of a program.
func IsSum(text string) bool { return hexSum().MatchString(text) }

// Collect removes the copies that are neither pinned nor in keep.
func (s *Store) Collect(keep map[string]bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("collect old copies of programs: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if sha := e.Name(); IsSum(sha) && !keep[sha] && s.pins[sha] == 0 {
			errs = append(errs, os.RemoveAll(filepath.Join(s.dir, sha)))
		}
	}
	return errors.Join(errs...)
}
