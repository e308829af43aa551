package secrets

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pannier/pannier/internal/atomicfile"
)

// Files say where a host keeps its keys.
type Files struct {
	// First is the file of the key that a standalone host makes.
	First string
	// Dir has the other keys, each in a file named by its id and ".key".
	Dir string
	// Shared is true if other hosts keep the ledger too. Then OpenFiles makes no key, and First does not seal before the
	// ledger names it.
	Shared bool
}

const (
	keySuffix = ".key"
	// offered is the name of the file with a key that the leader has sent and the ledger does not name yet. The next
	// such key replaces it.
	offered = "offered"
)

// OpenFiles reads a host's keys, and makes the first one of a standalone host that has none. It refuses files that
// users other than the agent's and root may read.
func OpenFiles(files Files) (*Sealer, error) {
	s := &Sealer{path: files.First, dir: files.Dir, keys: map[string]Key{}}
	if err := os.MkdirAll(files.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open the directory of secrets keys: %w", err)
	}
	if err := s.read(); err != nil {
		return nil, err
	}
	first, err := readKey(files.First)
	if errors.Is(err, fs.ErrNotExist) && !files.Shared && len(s.keys) == 0 {
		first, err = readOrMakeKey(files.First)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	default:
		s.keys[first.ID()], s.first = first, first.ID()
	}
	if !files.Shared {
		s.active = s.first
	}
	return s, nil
}

// read reads all keys in the directory. A file that is named by another key's id is an error.
func (s *Sealer) read() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("read the directory of secrets keys: %w", err)
	}
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), keySuffix)
		if _, known := s.keys[id]; !ok || known || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		path := filepath.Join(s.dir, e.Name())
		key, err := readKey(path)
		if err != nil {
			return err
		}
		if id == offered {
			s.offered = key
			continue
		}
		if key.ID() != id {
			return fmt.Errorf("the secrets key %s is the key %s: name the file %s", path, key.ID(), key.ID()+keySuffix)
		}
		s.keys[id] = key
	}
	return nil
}

// First returns the id of the key that this host made while it was standalone; empty: it made none.
func (s *Sealer) First() string { return s.first }

// Get returns a key by its id, also an offered one.
func (s *Sealer) Get(id string) (Key, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.get(id)
}

func (s *Sealer) get(id string) (Key, bool) {
	if k, ok := s.keys[id]; ok {
		return k, true
	}
	if s.isOffered(id) {
		return s.offered, true
	}
	return Key{}, false
}

func (s *Sealer) isOffered(id string) bool { return s.offered.material != nil && s.offered.ID() == id }

// take stores the offered key permanently.
func (s *Sealer) take() error {
	if err := s.add(s.offered); err != nil {
		return err
	}
	s.offered = Key{}
	return remove(filepath.Join(s.dir, offered+keySuffix))
}

// Add stores a key permanently. It is on disk when Add returns.
func (s *Sealer) Add(k Key) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.add(k)
}

func (s *Sealer) add(k Key) error {
	id := k.ID()
	if _, ok := s.keys[id]; ok {
		return nil
	}
	if err := writeKey(filepath.Join(s.dir, id+keySuffix), k); err != nil {
		return fmt.Errorf("store the secrets key %s: %w", id, err)
	}
	s.keys[id] = k
	return nil
}

// Offer stores a key that the ledger is about to name, in place of one that was offered before. It is on disk when
// Offer returns.
func (s *Sealer) Offer(k Key) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.get(k.ID()); ok {
		return nil
	}
	if err := atomicfile.WriteFile(filepath.Join(s.dir, offered+keySuffix), k.material); err != nil {
		return fmt.Errorf("store the secrets key %s: %w", k.ID(), err)
	}
	s.offered = k
	return nil
}

// Use applies the ledger's list of keys: active encrypts from now on, named are stored permanently, and
// removed are deleted. Key files that an operator has added meanwhile are read. It returns the named keys
// that this host does not have. An empty active changes nothing.
func (s *Sealer) Use(active string, named, removed []string) (missing []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if active == "" {
		return nil, nil
	}
	has := func(id string) bool { _, ok := s.get(id); return ok }
	var errs []error
	if slices.ContainsFunc(named, func(id string) bool { return !has(id) }) {
		errs = append(errs, s.read())
	}
	for _, id := range named {
		if s.isOffered(id) {
			errs = append(errs, s.take())
		}
		if !has(id) {
			missing = append(missing, id)
		}
	}
	s.active, s.named = active, active
	for _, id := range removed {
		if !slices.Contains(named, id) {
			errs = append(errs, s.forget(id))
		}
	}
	return missing, errors.Join(errs...)
}

// forget deletes a key that is not needed any more.
func (s *Sealer) forget(id string) error {
	if s.isOffered(id) {
		s.offered = Key{}
		if err := remove(filepath.Join(s.dir, offered+keySuffix)); err != nil {
			return err
		}
	}
	if _, ok := s.keys[id]; !ok {
		return nil
	}
	path := filepath.Join(s.dir, id+keySuffix)
	if id == s.first {
		path = s.path
		s.first = ""
	}
	delete(s.keys, id)
	return remove(path)
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the file of a secrets key: %w", err)
	}
	return atomicfile.SyncDir(filepath.Dir(path))
}
