package secrets

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// What Unseal refuses, for errors.Is.
var (
	// ErrKey: the value was sealed with a key that this host does not have.
	ErrKey = errors.New("sealed with another key")
	// ErrDamaged: the value was changed since it was sealed, or belongs to
	// something else than the additional data says.
	ErrDamaged = errors.New("sealed value is damaged or belongs to another volume")
)

const (
	version1   = 1
	keyIDSize  = 8
	headerSize = 1 + keyIDSize
)

// Sealer seals and unseals with one key. It is safe for concurrent use.
type Sealer struct {
	path  string // of the key file, for messages
	keyID [keyIDSize]byte
	aead  cipher.AEAD
}

// Open reads the key file at path and makes it first where there is none; its
// directory must exist. It refuses a file that others than the agent's user and
// root may read, and one that is not a key.
func Open(path string) (*Sealer, error) {
	key, err := readOrMakeKey(path)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("use the secrets key %s: %w", path, err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("use the secrets key %s: %w", path, err)
	}
	s := &Sealer{path: path, aead: aead}
	sum := sha256.Sum256(append([]byte("pannier secrets key id\x00"), key...))
	copy(s.keyID[:], sum[:])
	return s, nil
}

// KeyID names the key without telling it: 16 hexadecimal digits.
func (s *Sealer) KeyID() string { return hex.EncodeToString(s.keyID[:]) }

// String keeps the key out of whatever prints a Sealer.
func (s *Sealer) String() string { return "secrets.Sealer(key " + s.KeyID() + ")" }

// GoString is String, for %#v.
func (s *Sealer) GoString() string { return s.String() }

// ForVolume is the additional data that binds sealed secrets to one volume.
// Neither part may hold a NUL byte, which no valid name does.
func ForVolume(namespace, id string) []byte {
	return []byte("volume\x00" + namespace + "\x00" + id)
}

// Seal encrypts secrets, bound to additional (see ForVolume). No secrets seal
// to nil: what has none needs no key to be read.
func (s *Sealer) Seal(secrets map[string]string, additional []byte) ([]byte, error) {
	if len(secrets) == 0 {
		return nil, nil
	}
	plain, err := json.Marshal(secrets)
	if err != nil {
		return nil, errors.New("seal secrets: they cannot be encoded") // the cause could quote them
	}
	defer clear(plain)
	nonce := make([]byte, s.aead.NonceSize())
	rand.Read(nonce) // never fails
	header := append([]byte{version1}, s.keyID[:]...)
	sealed := make([]byte, 0, headerSize+len(nonce)+len(plain)+s.aead.Overhead())
	sealed = append(append(sealed, header...), nonce...)
	return s.aead.Seal(sealed, nonce, plain, bind(header, additional)), nil
}

// Unseal reverses Seal. additional must be what the value was sealed with. Its
// errors are ErrKey and ErrDamaged, with what an operator can do.
func (s *Sealer) Unseal(sealed, additional []byte) (map[string]string, error) {
	if len(sealed) == 0 {
		return nil, nil
	}
	if sealed[0] != version1 {
		return nil, fmt.Errorf("unseal secrets: %w: unknown format %d: it may come from a newer version of this program", ErrDamaged, sealed[0])
	}
	if len(sealed) < headerSize+s.aead.NonceSize()+s.aead.Overhead() {
		return nil, fmt.Errorf("unseal secrets: %w: only %d bytes: register the volume's secrets again", ErrDamaged, len(sealed))
	}
	header, rest := sealed[:headerSize], sealed[headerSize:]
	if id := header[1:]; !bytes.Equal(id, s.keyID[:]) {
		return nil, fmt.Errorf("unseal secrets: %w: it needs the key %x, %s holds %s: restore that key file from a backup, "+
			"or register the volume's secrets again", ErrKey, id, s.path, s.KeyID())
	}
	nonce, box := rest[:s.aead.NonceSize()], rest[s.aead.NonceSize():]
	plain, err := s.aead.Open(nil, nonce, box, bind(header, additional))
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

// bind is all that is authenticated and not encrypted. The header has a fixed
// length, so the two parts cannot be taken for one another.
func bind(header, additional []byte) []byte {
	return append(bytes.Clone(header), additional...)
}
