package secrets

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/pannier/pannier/internal/errcode"
)

// Errors of Seal and Unseal.
var (
	// ErrNoKey: this host does not have a key to seal with, or not yet.
	ErrNoKey = errcode.Unavailable.New("this host does not have the key that seals secrets yet")
	// ErrKey: the value was sealed with a key that this host does not have.
	ErrKey = errors.New("sealed with another key")
	// ErrDamaged: the value was changed since it was sealed, or was sealed with other additional data.
	ErrDamaged = errors.New("sealed value is damaged or belongs to another volume")
)

const (
	version1   = 1
	keyIDSize  = 8
	headerSize = 1 + keyIDSize
)

// Sealer seals with one key and unseals with all keys of a host. It is safe for concurrent use.
type Sealer struct {
	path, dir string // of the first key's file, and of the directory of the others

	mu      sync.RWMutex
	keys    map[string]Key // by id
	offered Key            // zero: none
	first   string         // id of the first key; empty: none
	active  string         // id of the key that seals; empty: none yet
	named   string         // active if the ledger names it
}

// Open reads the key file at path, after making one if there is none. Its directory must exist. It refuses a file that
// users other than the agent's and root may read, and one that is not a key.
func Open(path string) (*Sealer, error) {
	key, err := readOrMakeKey(path)
	if err != nil {
		return nil, err
	}
	id := key.ID()
	return &Sealer{path: path, dir: path + ".d", keys: map[string]Key{id: key}, first: id, active: id}, nil
}

// KeyID returns the id of the key that seals; empty: none yet.
func (s *Sealer) KeyID() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.active
}

// Named returns the id of the key that seals if the ledger names it; empty: it names none.
func (s *Sealer) Named() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.named
}

// String never reveals a key.
func (s *Sealer) String() string { return "secrets.Sealer(key " + s.KeyID() + ")" }

// GoString is String, for %#v.
func (s *Sealer) GoString() string { return s.String() }

// KeyOf returns the id of the key that a value was sealed with; empty: the value does not have this format.
func KeyOf(sealed []byte) string {
	if len(sealed) < headerSize || sealed[0] != version1 {
		return ""
	}
	return hex.EncodeToString(sealed[1:headerSize])
}

// ForVolume returns the additional data that binds sealed secrets to a volume. Neither part may contain a NUL byte; no
// valid name does.
func ForVolume(namespace, id string) []byte {
	return []byte("volume\x00" + namespace + "\x00" + id)
}

// Seal encrypts secrets, bound to additional (see ForVolume), and returns the id of the key; empty: one that the
// ledger does not name. No secrets seal to nil, which needs no key. The error is ErrNoKey.
func (s *Sealer) Seal(secrets map[string]string, additional []byte) (sealed []byte, named string, err error) {
	if len(secrets) == 0 {
		return nil, "", nil
	}
	s.mu.RLock()
	key, ok := s.get(s.active)
	id, named := s.active, s.named
	s.mu.RUnlock()
	switch {
	case id == "":
		return nil, "", fmt.Errorf("seal secrets: %w: the servers agree on one when the cluster is formed", ErrNoKey)
	case !ok:
		return nil, "", fmt.Errorf(
			"seal secrets: %w: it is the key %s, and this server is asking the others for it (see: pannier operator secrets status)", ErrNoKey, id)
	}
	plain, err := json.Marshal(secrets)
	if err != nil {
		return nil, "", errors.New("seal secrets: they cannot be encoded") // the cause could quote them
	}
	defer clear(plain)
	nonce := make([]byte, key.aead.NonceSize())
	rand.Read(nonce) // never fails
	header := append([]byte{version1}, key.id[:]...)
	sealed = make([]byte, 0, headerSize+len(nonce)+len(plain)+key.aead.Overhead())
	sealed = append(append(sealed, header...), nonce...)
	return key.aead.Seal(sealed, nonce, plain, bind(header, additional)), named, nil
}

// Reseal re-encrypts a value with the key that seals now.
func (s *Sealer) Reseal(sealed, additional []byte) (again []byte, named string, err error) {
	open, err := s.Unseal(sealed, additional)
	if err != nil {
		return nil, "", err
	}
	return s.Seal(open, additional)
}

// Unseal reverses Seal. additional must be what the value was sealed with. Errors are ErrKey and ErrDamaged, with what
// an operator can do.
func (s *Sealer) Unseal(sealed, additional []byte) (map[string]string, error) {
	if len(sealed) == 0 {
		return nil, nil
	}
	if sealed[0] != version1 {
		return nil, fmt.Errorf("unseal secrets: %w: unknown format %d: it may come from a newer version of this program",
			ErrDamaged, sealed[0])
	}
	const nonceSize, tagSize = 12, 16 // NIST SP 800-38D
	if len(sealed) < headerSize+nonceSize+tagSize {
		return nil, fmt.Errorf("unseal secrets: %w: only %d bytes: register the volume's secrets again", ErrDamaged,
			len(sealed))
	}
	header, rest := sealed[:headerSize], sealed[headerSize:]
	s.mu.RLock()
	key, ok := s.get(KeyOf(sealed))
	have := slices.Sorted(maps.Keys(s.keys))
	s.mu.RUnlock()
	if !ok {
		return nil, fmt.Errorf(
			"unseal secrets: %w: it needs the key %x, and %s and %s hold %s: restore that key's file from a backup, "+
				"or register the volume's secrets again", ErrKey, header[1:], s.path, s.dir, strings.Join(have, ", "))
	}
	plain, err := key.aead.Open(nil, rest[:nonceSize], rest[nonceSize:], bind(header, additional))
	if err != nil {
		return nil, fmt.Errorf("unseal secrets: %w: register the volume's secrets again", ErrDamaged)
	}
	defer clear(plain)
	var secrets map[string]string
	if err := json.Unmarshal(plain, &secrets); err != nil {
		return nil, fmt.Errorf("unseal secrets: %w: register the volume's secrets again", ErrDamaged)
	}
	return secrets, nil
}

// bind returns what is authenticated but not encrypted. The header has a fixed length, so the two parts cannot be
// confused.
func bind(header, additional []byte) []byte {
	return append(bytes.Clone(header), additional...)
}
