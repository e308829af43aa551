package secrets

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/pannier/pannier/internal/atomicfile"
)

// keySize is the size of an AES-256 key in bytes.
const keySize = 32

// Key seals and unseals. It prints as its id.
type Key struct {
	id       [keyIDSize]byte
	material []byte
	aead     cipher.AEAD
}

// NewKey makes a random key, which is not in a file yet.
func NewKey() Key {
	material := make([]byte, keySize)
	rand.Read(material) // never fails
	k, err := ParseKey(material)
	if err != nil {
		panic(err) // AES accepts every key of this size
	}
	return k
}

// ParseKey makes a key from its bytes (Material).
func ParseKey(material []byte) (Key, error) {
	if len(material) != keySize {
		return Key{}, fmt.Errorf("a secrets key has %d bytes, not %d", keySize, len(material))
	}
	block, err := aes.NewCipher(material)
	if err != nil {
		return Key{}, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return Key{}, err
	}
	k := Key{material: material, aead: aead}
	sum := sha256.Sum256(append([]byte("pannier secrets key id\x00"), material...))
	copy(k.id[:], sum[:])
	return k, nil
}

// ID identifies the key without revealing it: 16 hexadecimal digits.
func (k Key) ID() string { return hex.EncodeToString(k.id[:]) }

// Material is the key itself, to be sent to another server.
func (k Key) Material() []byte { return k.material }

// String never reveals the key.
func (k Key) String() string { return "secrets.Key(" + k.ID() + ")" }

// Format is String for every verb.
func (k Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, k.String()) }

// readOrMakeKey reads the key in path, after making one if there is none.
func readOrMakeKey(path string) (Key, error) {
	key, err := readKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if err := writeKey(path, NewKey()); err != nil {
		return Key{}, fmt.Errorf("create the secrets key %s: %w", path, err)
	}
	return readKey(path)
}

// readKey refuses a key that another user may have read or replaced.
func readKey(path string) (Key, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) {
		return Key{}, fmt.Errorf("the secrets key %s is a symbolic link: put the key file itself there", path)
	}
	if err != nil {
		return Key{}, fmt.Errorf("open the secrets key: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Key{}, fmt.Errorf("read the secrets key: %w", err)
	}
	if err := checkKeyFile(path, info); err != nil {
		return Key{}, err
	}
	material := make([]byte, keySize)
	if _, err := io.ReadFull(f, material); err != nil {
		return Key{}, fmt.Errorf("read the secrets key %s: %w", path, err)
	}
	key, err := ParseKey(material)
	if err != nil {
		return Key{}, fmt.Errorf("use the secrets key %s: %w", path, err)
	}
	return key, nil
}

func checkKeyFile(path string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("the secrets key %s is not a regular file (%s): restore it from a backup", path, info.Mode().Type())
	}
	if perm := info.Mode().Perm(); perm&0o077 != 0 {
		return fmt.Errorf(
			"the secrets key %s is open to others (mode %04o): make sure that nobody has read it, then chmod 0600 %s", path,
			perm, path)
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; owner != 0 && int(owner) != os.Geteuid() {
		return fmt.Errorf("the secrets key %s belongs to uid %d: make sure that nobody has read it, then chown %d %s", path,
			owner, os.Geteuid(), path)
	}
	if info.Size() != keySize {
		return fmt.Errorf("the secrets key %s has %d bytes, want %d: restore it from a backup, or, "+
			"if no registered volume has secrets, remove it and a new one is made", path, info.Size(), keySize)
	}
	return nil
}

// writeKey writes a key so that after a crash path has a whole key or none. It never replaces a key that another
// process has made meanwhile: then that one is used.
func writeKey(path string, key Key) error {
	err := atomicfile.Create(path, func(f *os.File) error {
		_, err := f.Write(key.material)
		return err
	})
	if errors.Is(err, fs.ErrExist) {
		return atomicfile.SyncDir(filepath.Dir(path))
	}
	return err
}
