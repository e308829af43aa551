package supervisor

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/hashicorp/go-version"

	"github.com/pannier/pannier/host/internal/system/program"
	"github.com/pannier/pannier/host/internal/system/signing"
	"github.com/pannier/pannier/internal/atomicfile"
)

// store holds verified copies of executables, at <sha256>/<name>. A plugin runs from its copy: the plugin
// directory can be overwritten at any time, and what was hashed is what runs.
type store struct {
	dir     string
	signing signing.Policy
	sync    func(path string) error // atomicfile.Sync, but in tests

	mu   sync.Mutex
	pins map[string]int // copies that a start is about to use
}

func newStore(dir string, policy signing.Policy) *store {
	return &store{dir: dir, signing: policy, sync: atomicfile.Sync, pins: map[string]int{}}
}

// binary is a verified copy.
type binary struct {
	path string
	sha  string // 64 hex digits
	// version that its signature, if one is required, or else the name of its file promises; nil: any.
	version *version.Version
}

// add copies an executable and checks it against checksum unless that is empty. The copy is kept at least until
// unpin is called, and survives a loss of power.
func (s *store) add(src, name, checksum string) (bin binary, unpin func(), err error) {
	temp, sha, err := program.Copy(src, s.dir)
	if err != nil {
		return binary{}, nil, err
	}
	defer os.Remove(temp) // already gone if the rename was reached
	if checksum != "" && sha != checksum {
		return binary{}, nil, fmt.Errorf("%w: %s has sha256:%s, the configuration wants sha256:%s", errChecksum, src, sha,
			checksum)
	}
	proof, err := signing.Beside(src)
	if err != nil && s.signing.Required {
		return binary{}, nil, err
	}
	bin = binary{path: filepath.Join(s.dir, sha, name), sha: sha}
	if bin.version, err = s.checkSigned(name, src, temp, proof); err != nil {
		return binary{}, nil, fmt.Errorf("%s: %w", src, err)
	}
	unpin = s.pin(sha)
	if err := s.place(temp, bin.path, proof); err != nil {
		unpin()
		return binary{}, nil, fmt.Errorf("keep a copy of %s: %w", src, err)
	}
	return bin, unpin, nil
}

// use returns a copy that is kept already, after hashing it again.
func (s *store) use(sha, name, checksum string) (bin binary, unpin func(), err error) {
	if checksum != "" && sha != checksum {
		return binary{}, nil, fmt.Errorf("%w: the copy has sha256:%s, the configuration wants sha256:%s", errChecksum, sha,
			checksum)
	}
	unpin = s.pin(sha)
	bin = binary{path: filepath.Join(s.dir, sha, name), sha: sha}
	got, err := program.Sum(bin.path)
	if err == nil && got != sha {
		err = fmt.Errorf("%w: %s has sha256:%s", errChecksum, bin.path, got)
	}
	if err == nil && s.signing.Required {
		var proof signing.Proof
		if proof, err = signing.Beside(bin.path); err == nil {
			bin.version, err = s.checkSigned(name, bin.path, bin.path, proof)
		}
	}
	if err != nil {
		unpin()
		return binary{}, nil, fmt.Errorf("use the copy of plugin %q: %w", name, err)
	}
	return bin, unpin, nil
}

// checkSigned returns signing.ErrSignature unless a key that this host trusts has signed a copy of the file src, if it
// requires that. want is the version that the process has to report; nil: any.
func (s *store) checkSigned(name, src, copied string, proof signing.Proof) (want *version.Version, err error) {
	_, v := signing.SplitVersion(filepath.Base(src))
	if !s.signing.Required {
		return v, nil
	}
	f, err := os.Open(copied)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	want, err = s.signing.Check(name, v, f, proof)
	return cmp.Or(want, v), err
}

// has says whether a copy is kept.
func (s *store) has(sha, name string) bool {
	_, err := os.Stat(filepath.Join(s.dir, sha, name))
	return err == nil
}

var errChecksum = errors.New("checksum mismatch")

// place keeps a copy and what proves where it comes from.
func (s *store) place(temp, path string, proof signing.Proof) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return err
	}
	if len(proof.Signature) > 0 { // before the copy: whoever finds that finds both
		if err := proof.Write(path); err != nil {
			return err
		}
	}
	if err := s.sync(temp); err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		return err
	}
	return errors.Join(atomicfile.SyncDir(filepath.Dir(path)), atomicfile.SyncDir(s.dir))
}

func (s *store) pin(sha string) (unpin func()) {
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

// collect removes the copies that are neither pinned nor in keep.
func (s *store) collect(keep map[string]bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("collect old plugin copies: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if sha := e.Name(); hexSum().MatchString(sha) && !keep[sha] && s.pins[sha] == 0 {
			errs = append(errs, os.RemoveAll(filepath.Join(s.dir, sha)))
		}
	}
	return errors.Join(errs...)
}
