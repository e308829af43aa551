package config

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Key is a secret key of AES, in base64: of 16, 24 or 32 bytes. Empty: there is none.
// It is never printed.
type Key string

// Format keeps the key out of logs and errors.
func (k Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "[REDACTED]") }

// MarshalText keeps the key out of JSON.
func (k Key) MarshalText() ([]byte, error) { return []byte("[REDACTED]"), nil }

// Bytes are the key itself; nil where there is none.
func (k Key) Bytes() []byte {
	key, err := base64.StdEncoding.DecodeString(string(k))
	if err != nil || len(key) == 0 {
		return nil
	}
	return key
}

var (
	keySizes = []int{16, 24, 32}
	errKey   = errors.New("the base64 of 16, 24 or 32 bytes is required: " + howToMakeKey)
)

// howToMakeKey is what to do next where a key is missing or is none.
const howToMakeKey = "make a key with: head -c 32 /dev/urandom | base64"

func parseKey(text string) (Key, error) {
	key := Key(strings.TrimSpace(text))
	if !slices.Contains(keySizes, len(key.Bytes())) {
		return "", errKey
	}
	return key, nil
}

// KeySource is where a key is: in the configuration or in a file of its own.
type KeySource struct {
	// Key is the key where it was written itself.
	Key Key
	// File is absolute; empty: there is none.
	File string
}

// Read gives the key, empty where there is none. A file has to have the key alone in
// it, in base64, and not be readable by every user.
func (k KeySource) Read() (Key, error) {
	if k.File == "" {
		return k.Key, nil
	}
	if err := checkPrivate(k.File); err != nil {
		return "", fmt.Errorf("read a key: %w", err)
	}
	text, err := readFile(k.File)
	if err != nil {
		return "", fmt.Errorf("read a key: %w", err)
	}
	key, err := parseKey(string(text))
	if err != nil {
		return "", fmt.Errorf("read a key: %s: %w", k.File, err)
	}
	return key, nil
}

// gossipKey reads encrypt or encrypt_file, whichever was written.
func (s *section) gossipKey(dir string, dst *KeySource) {
	switch {
	case s.has("encrypt") && s.has("encrypt_file"):
		s.fail("encrypt_file", "stands beside encrypt; leave one of them out")
	case s.has("encrypt_file"):
		dst.Key = ""
		s.file("encrypt_file", dir, &dst.File)
	case s.has("encrypt"):
		var text string
		if !s.str("encrypt", &text) {
			return
		}
		key, err := parseKey(text)
		if err == nil {
			err = checkPrivate(s.at("encrypt").Filename)
		}
		if err != nil {
			s.fail("encrypt", "%v", err)
			return
		}
		*dst = KeySource{Key: key}
	}
}

// checkPrivate refuses a file with a secret that every user may read.
func checkPrivate(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o007 != 0 {
		return fmt.Errorf("every user of this machine can read the key in %s (mode %#o): run chmod 600 %s, or keep the key in a file of its own and name that in encrypt_file",
			path, info.Mode().Perm(), path)
	}
	return nil
}
