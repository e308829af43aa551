package peer

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"

	"google.golang.org/grpc/metadata"

	"github.com/pannier/pannier/internal/atomicfile"
)

// Secret is what proves that a node is the one that the ledger knows: its certificate
// says a name, and a name can be given again. It prints as nothing that helps.
type Secret struct{ text string }

// secretText is what a secret looks like: what rand.Text gives.
var secretText = regexp.MustCompile(`^[A-Z2-7]{26,64}$`)

// OpenSecret reads the node's secret from a file that only its user can read, and makes
// one first where there is none.
func OpenSecret(path string) (Secret, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		s := Secret{rand.Text()}
		if err := atomicfile.WriteFile(path, []byte(s.text)); err != nil {
			return Secret{}, fmt.Errorf("make the node's secret: %w", err)
		}
		return s, nil
	}
	if err != nil {
		return Secret{}, fmt.Errorf("read the node's secret: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return Secret{}, fmt.Errorf("the node's secret %s must be a file that only its owner can read (it is %s): make sure that nobody has read it, then chmod 0600 %s", path, info.Mode(), path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return Secret{}, fmt.Errorf("read the node's secret: %w", err)
	}
	if !secretText.Match(text) {
		return Secret{}, fmt.Errorf("the node's secret %s is damaged: restore it, or remove it and run on a server: pannier node purge", path)
	}
	return Secret{string(text)}, nil
}

// Hash is what the ledger keeps of the secret: its SHA-256 in hexadecimal.
func (s Secret) Hash() string { return hashOf(s.text) }

// with sends the secret with the calls of a context.
func (s Secret) with(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, secretKey, s.text)
}

// String keeps the secret out of logs.
func (Secret) String() string { return "[REDACTED]" }

// GoString keeps it out of %#v.
func (Secret) GoString() string { return "[REDACTED]" }

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// sameHash compares without telling by its time how far two are alike.
func sameHash(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
