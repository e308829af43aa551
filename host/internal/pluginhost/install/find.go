package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/pannier/pannier/host/internal/pluginhost/signing"
	"github.com/pannier/pannier/internal/trusted"
)

// Find returns the installed binary of a plugin that has the highest version. It is checked as an agent checks it:
// nobody else may have put it there, it has the checksum, if one is given, and the signature, if one is required.
func Find(dir, name, checksum string, policy signing.Policy) (string, error) {
	path, err := find(dir, name, checksum, policy)
	if err != nil {
		return "", fmt.Errorf("plugin %q: %w", name, err)
	}
	return path, nil
}

func find(dir, name, checksum string, policy signing.Policy) (string, error) {
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
			return "", fmt.Errorf("it is not in the plugin directory %s: see pannier plugin install", dir)
		}
		if err != nil {
			return "", err
		}
	}
	sha, err := sumOf(path)
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
	proof, err := signing.Beside(path)
	if err != nil {
		return "", err
	}
	if _, err := policy.Check(name, newest, binary, proof); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return path, nil
}
