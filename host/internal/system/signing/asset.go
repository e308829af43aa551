package signing

import (
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/hashicorp/go-version"
)

// Asset is what the name of a plugin's file says: NAME, NAME_vX.Y.Z, and either with _OS_ARCH as in a release.
type Asset struct {
	Name     string
	Version  *version.Version // nil: the name has none
	OS, Arch string           // Go's names; empty: any
}

// platform matches the end of a release's file name.
var platform = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`_(aix|android|darwin|freebsd|illumos|linux|netbsd|openbsd|solaris|windows)_([a-z0-9]+)$`)
})

// ParseAsset reads a file's name, without its folder.
func ParseAsset(base string) Asset {
	a := Asset{}
	if m := platform().FindStringSubmatch(base); m != nil {
		a.OS, a.Arch = m[1], m[2]
		base = strings.TrimSuffix(base, m[0])
	}
	a.Name, a.Version = SplitVersion(base)
	return a
}

// SplitVersion splits NAME_vX.Y.Z into the plugin's name and the version. A name without a version loses its extension.
func SplitVersion(base string) (name string, v *version.Version) {
	if n := strings.LastIndex(base, "_v"); n >= 0 {
		if v, err := version.NewSemver(base[n+len("_v"):]); err == nil {
			return base[:n], v
		}
	}
	return strings.TrimSuffix(base, filepath.Ext(base)), nil
}

// OriginPath returns the path of the file that says where a plugin was installed from.
func OriginPath(dir, name string) string { return filepath.Join(dir, "."+name+".source.json") }
