package bundle

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
)

const (
	// shortest is the length of the shortest secret that is searched for, in bytes: what is shorter is in many texts.
	shortest = 8
	// maxSecretFile bounds a file with secrets, in bytes.
	maxSecretFile = 1 << 20
)

// shapes are those of secrets whoever has made them: JSON Web Tokens in their encoded form (RFC 7519), whose header
// and claims are JSON objects, and private keys in PEM (RFC 7468).
var shapes = sync.OnceValue(func() map[string]*regexp.Regexp {
	return map[string]*regexp.Regexp{
		"a JSON Web Token": regexp.MustCompile(`eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}`),
		"a private key":    regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----`),
	}
})

// secret is one that no file may have.
type secret struct {
	whose     string   // where it is from
	spellings [][]byte // as it may be written
}

// Secret makes a value known as a secret; whose says where it is from. An empty one is none.
func (b *Bundle) Secret(whose, value string) {
	value = strings.TrimSpace(value)
	switch {
	case value == "":
	case len(value) < shortest:
		b.Missing("the search for secrets", fmt.Errorf("%s has fewer than %d characters, and was not searched for", whose,
			shortest))
	default:
		b.secrets = append(b.secrets, secret{whose, spellings(value)})
	}
}

// SecretFile makes the secrets in a file, or in the files of a folder, known. A missing file has none.
func (b *Bundle) SecretFile(path string) {
	err := filepath.WalkDir(path, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Stat(path) // of what a link names
		if err != nil || info.IsDir() || !info.Mode().IsRegular() || info.Size() > maxSecretFile {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, value := range valuesIn(content) {
			b.secrets = append(b.secrets, secret{path, spellings(value)})
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		b.Missing("the search for secrets", fmt.Errorf("those of %s were not searched for: %w", path, err))
	}
}

// valuesIn returns the secrets in a file: all of it if it is one line; else the lines of a key, which have neither
// blanks nor quotes, as those of JSON and the first and last ones of PEM have.
func valuesIn(content []byte) (values []string) {
	text := strings.TrimSpace(string(content))
	if !strings.ContainsRune(text, '\n') {
		if len(text) >= shortest {
			values = append(values, text)
		}
		return values
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if len(line) >= 2*shortest && !strings.ContainsAny(line, " \t\"'{}[]") {
			values = append(values, line)
		}
	}
	return values
}

// spellings returns a secret as it is, in JSON, and the parts of its base64 form that do not depend on the text around
// it.
func spellings(value string) (all [][]byte) {
	all = append(all, []byte(value))
	if quoted, err := json.Marshal(value); err == nil {
		all = append(all, bytes.Trim(quoted, `"`))
	}
	for before := range 3 {
		text := base64.RawStdEncoding.EncodeToString([]byte("\x00\x00"[:before] + value))
		if rest := (before + len(value)) % 3; rest != 0 {
			text = text[:len(text)-1] // shared with the text after it
		}
		all = append(all, []byte(text[(before*8+5)/6:]))
	}
	return all
}

// Reveals says whose secret a text has; empty: none that is known.
func (b *Bundle) Reveals(content []byte) (whose string) {
	for name, shape := range shapes() {
		if shape.Match(content) {
			return name
		}
	}
	for _, s := range b.secrets {
		for _, spelling := range s.spellings {
			if bytes.Contains(content, spelling) {
				return s.whose
			}
		}
	}
	return ""
}
