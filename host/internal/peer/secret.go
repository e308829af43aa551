package peer

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"sync"

	"github.com/pannier/pannier/internal/atomicfile"
)

// Secret proves that a node is the one in the ledger: a certificate only proves the name, and another host may be
// given the same name. Formatting it never shows it.
type Secret struct{ text string }

// secretText matches what rand.Text returns.
var secretText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Z2-7]{26,64}$`) })

// OpenSecret reads the node's secret from a file that only its owner can read, and creates one if there is none.
func OpenSecret(path string) (Secret, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		s := Secret{rand.Text()}
		if err := atomicfile.WriteFile(path, []byte(s.text)); err != nil {
			return Secret{}, fmt.Errorf("create the node's secret: %w", err)
		}
		return s, nil
	}
	if err != nil {
		return Secret{}, fmt.Errorf("read the node's secret: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return Secret{}, fmt.Errorf(
			"the node's secret %s must be a file that only its owner can read (it is %s): make sure that nobody has read it, then chmod 0600 %s", path, info.Mode(), path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return Secret{}, fmt.Errorf("read the node's secret: %w", err)
	}
	if !secretText().Match(text) {
		return Secret{}, fmt.Errorf(
			"the node's secret %s is damaged: restore it, or remove it and run on a server: pannier node purge", path)
	}
	return Secret{string(text)}, nil
}

// Hash is the secret's SHA-256 in hexadecimal, which the ledger keeps.
func (s Secret) Hash() string { return hashOf(s.text) }

// String keeps the secret out of logs.
func (Secret) String() string { return "[REDACTED]" }

// GoString keeps the secret out of %#v.
func (Secret) GoString() string { return "[REDACTED]" }

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// sameHash compares in constant time.
func sameHash(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
