package signing

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/go-version"

	"github.com/pannier/pannier/internal/trusted"
)

// Find returns the installed binary of a plugin that has the highest version. It is checked as an agent checks it:
// nobody else may have put it there, it has the checksum, if one is given, and the signature, if one is required.
func Find(dir, name, checksum string, policy Policy) (string, error) {
	path, err := find(dir, name, checksum, policy)
	if err != nil {
		return "", fmt.Errorf("plugin %q: %w", name, err)
	}
	return path, nil
}

func find(dir, name, checksum string, policy Policy) (string, error) {
	newest, err := Newest(dir, name)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	if newest != nil {
		path += "_v" + newest.String()
	}
	for _, err := range []error{trusted.File(path), trusted.Dir(dir)} {
		if errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("it is not in the plugin directory %s: see pannier agent plugin install", dir)
		}
		if err != nil {
			return "", err
		}
	}
	sha, err := FileSum(path)
	if err != nil {
		return "", err
	}
	if want := strings.TrimPrefix(strings.ToLower(checksum), "sha256:"); want != "" && sha != want {
		return "", fmt.Errorf("%s has sha256:%s, and the configuration wants sha256:%s", path, sha, want)
	}
	if !policy.Required {
		return path, nil
	}
	binary, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer binary.Close()
	proof, err := Beside(path)
	if err != nil {
		return "", err
	}
	if _, err := policy.Check(name, newest, binary, proof); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return path, nil
}

// Newest returns the highest installed version of a plugin; nil: none is installed under a version.
func Newest(dir, name string) (newest *version.Version, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the plugin directory: %w", err)
	}
	for _, e := range entries {
		n, v := SplitVersion(e.Name())
		if n == name && v != nil && !IsProof(e.Name()) && (newest == nil || v.GreaterThan(newest)) {
			newest = v
		}
	}
	return newest, nil
}

// FileSum returns the SHA-256 of a file, in hexadecimal.
func FileSum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return ReadSum(f)
}

// ReadSum returns the SHA-256 of all that r has, in hexadecimal.
func ReadSum(r io.Reader) (string, error) {
	sum := sha256.New()
	if _, err := io.Copy(sum, r); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
