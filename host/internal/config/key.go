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

// Key is an AES key of 16, 24 or 32 bytes, in base64; empty: none. It is never printed.
type Key string

// Format keeps the key out of logs and errors.
func (k Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "[REDACTED]") }

// MarshalText keeps the key out of JSON.
func (k Key) MarshalText() ([]byte, error) { return []byte("[REDACTED]"), nil }

// Bytes returns the key itself; nil if there is none.
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

// howToMakeKey is the advice for a missing or invalid key.
const howToMakeKey = "make a key with: head -c 32 /dev/urandom | base64"

func parseKey(text string) (Key, error) {
	key := Key(strings.TrimSpace(text))
	if !slices.Contains(keySizes, len(key.Bytes())) {
		return "", errKey
	}
	return key, nil
}

// KeySource is where a key is: in the configuration or in a file.
type KeySource struct {
	// Key is the key if it is in the configuration.
	Key Key
	// File is the file's absolute path; empty: none.
	File string
}

// Read returns the key, or an empty one if there is none. A file must contain nothing but the key, in base64, and not
// be readable by everyone.
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
	defer clear(text)
	key, err := parseKey(string(text))
	if err != nil {
		return "", fmt.Errorf("read a key: %s: %w", k.File, err)
	}
	return key, nil
}

// readGossipKey reads encrypt or encrypt_file.
func readGossipKey(s *section, dir string, dst *KeySource) {
	switch {
	case s.has("encrypt") && s.has("encrypt_file"):
		s.fail("encrypt_file", "is given as well as encrypt; leave one of them out")
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

// checkPrivate returns an error for a file that everyone can read.
func checkPrivate(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o007 != 0 {
		return fmt.Errorf(
			"every user of this machine can read the key in %s (mode %#o): run chmod 600 %s, or keep the key in a file of its own and name that in encrypt_file",
			path, info.Mode().Perm(), path)
	}
	return nil
}
