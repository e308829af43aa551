package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/pannier/pannier/host/internal/system/signing"
	"github.com/pannier/pannier/internal/atomicfile"
)

// origin is where a plugin was installed from, for its upgrades. It has no secrets.
type origin struct {
	Source  string `json:"source"`
	Version string `json:"version,omitempty"` // the constraint
}

func loadOrigin(dir, name string) (o origin, err error) {
	data, err := os.ReadFile(signing.OriginPath(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return o, fmt.Errorf("%s does not say where plugin %q is from: use pannier agent plugin install SOURCE", dir, name)
	}
	if err == nil {
		err = json.Unmarshal(data, &o)
	}
	if err != nil {
		return o, fmt.Errorf("read where plugin %q is from: %w", name, err)
	}
	return o, nil
}

// save stores the origin, unless that would store a secret, such as the query of a signed address.
func (o origin) save(dir, name string) (saved bool, err error) {
	if isAddress(o.Source) {
		if u, err := url.Parse(o.Source); err != nil || u.RawQuery != "" || u.User != nil {
			return false, nil //nolint:nilerr // what cannot be read may be a secret
		}
	} else if o.Source, err = filepath.Abs(o.Source); err != nil {
		return false, err
	}
	return true, atomicfile.WriteJSON(signing.OriginPath(dir, name), o)
}

func isAddress(source string) bool { return strings.Contains(source, "://") }

// Redacted returns a source without what may be secret in it.
func Redacted(source string) string {
	if !isAddress(source) {
		return source
	}
	u, err := url.Parse(source)
	if err != nil {
		return "an address that cannot be read"
	}
	if u.RawQuery != "" {
		u.RawQuery = "REDACTED"
	}
	return u.Redacted()
}
