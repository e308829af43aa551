package state

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/pannier/pannier/internal/atomicfile"
)

// ErrWrongKey says that the ledger is encrypted with another key than the one given.
var ErrWrongKey = errors.New("the ledger is encrypted with another key")

// Option changes how a store is opened.
type Option func(*Store)

// WithKey encrypts the ledger on disk with a key of 16, 24 or 32 bytes; an empty one is none.
func WithKey(key []byte) Option { return func(s *Store) { s.key = key } }

// keyFile has what a key can be recognised by, and nothing that it could be found with.
const keyFile = "key-check"

// settleKey compares the key with the one that the ledger is encrypted with. A ledger that was plain
// is thrown away: lost.
func settleKey(dir string, key []byte) (lost bool, err error) {
	mark, err := os.ReadFile(filepath.Join(dir, keyFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	encrypted := err == nil
	if len(key) == 0 {
		if encrypted {
			return false, fmt.Errorf("%w: none is given (to go on without encryption, remove %s while the host is down: the raft log fills it again)", ErrWrongKey, dir)
		}
		return false, nil
	}
	switch len(key) {
	case 16, 24, 32:
	default:
		return false, fmt.Errorf("a key of %d bytes: it must have 16, 24 or 32", len(key))
	}
	sum := hmac.New(sha256.New, key)
	sum.Write([]byte("pannier ledger"))
	want := hex.EncodeToString(sum.Sum(nil))
	switch {
	case encrypted && !hmac.Equal(mark, []byte(want)):
		return false, fmt.Errorf("%w (to go on with the one that is given, remove %s while the host is down: the raft log fills it again)", ErrWrongKey, dir)
	case encrypted:
		return false, nil
	}
	found, err := filepath.Glob(filepath.Join(dir, "db-*"))
	if err != nil {
		return false, err
	}
	if err := forget(dir); err != nil {
		return false, err
	}
	return len(found) > 0, atomicfile.WriteFile(filepath.Join(dir, keyFile), []byte(want))
}
