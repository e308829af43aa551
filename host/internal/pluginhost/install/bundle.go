package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/go-version"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/system/signing"
)

// sumsFile lists the checksums of a bundle's files, as make dist writes it.
const sumsFile = "SHA256SUMS"

// bundle is a place with files of plugins.
type bundle struct {
	names []string // of files that may be plugins; without folders
	// open opens a file, also one that names lacks, such as a signature. The error is fs.ErrNotExist if there is none.
	open func(ctx context.Context, name string) (io.ReadCloser, error)
	// version of all that is in it; nil: the names say it.
	version *version.Version
}

// file is one of a bundle.
type file struct {
	name    string
	asset   signing.Asset
	version *version.Version // nil: only the plugin itself says it
}

// open opens the source.
func (i *installation) open(ctx context.Context) (*bundle, error) {
	switch scheme, _, _ := strings.Cut(i.Source, "://"); {
	case !isAddress(i.Source):
		return i.openPath(i.Source)
	case scheme == "https":
		return i.openHTTPS(ctx)
	case scheme == "oci":
		return i.openOCI(ctx)
	case scheme == "http":
		return nil, errors.New("http is refused, because others on the way could change what it brings: use https")
	default:
		return nil, fmt.Errorf("%s:// is not known: give a path, or an address that begins with https:// or oci://", scheme)
	}
}

// openPath opens a file, a directory or an archive.
func (i *installation) openPath(path string) (*bundle, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return dirBundle(path)
	case isArchive(path):
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return i.openArchive(f)
	default:
		b, err := dirBundle(filepath.Dir(path))
		if err == nil {
			b.names = []string{filepath.Base(path)}
		}
		return b, err
	}
}

// dirBundle is a directory. Links that lead out of it are not followed.
func dirBundle(dir string) (*bundle, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	b := &bundle{open: func(_ context.Context, name string) (io.ReadCloser, error) {
		root, err := os.OpenRoot(dir)
		if err != nil {
			return nil, err
		}
		defer root.Close()
		f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return nil, err
		}
		if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
			_ = f.Close()
			return nil, errors.Join(err, fmt.Errorf("%s is not a regular file", name))
		}
		return f, nil
	}}
	for _, e := range entries {
		if !e.IsDir() {
			b.names = append(b.names, e.Name())
		}
	}
	return b, nil
}

// choose returns the file of the plugin to install: of those for this architecture the highest version allowed.
func (i *installation) choose(b *bundle) (best file, err error) {
	found := map[string]bool{}
	var others []string
	names := slices.DeleteFunc(slices.Clone(b.names), isNoPlugin)
	for _, name := range names {
		f := file{name: name, asset: signing.ParseAsset(name), version: b.version}
		if f.version == nil {
			f.version = f.asset.Version
		}
		plain := f.asset.Version == nil && f.asset.OS == "" // as LICENSE is too
		switch {
		case !goodName().MatchString(f.asset.Name), i.Name != "" && f.asset.Name != i.Name,
			i.Name == "" && plain && len(names) > 1:
			continue
		case f.asset.OS != "" && f.asset.OS != "linux", f.asset.Arch != "" && f.asset.Arch != i.Arch,
			!i.allows(f.version, len(names)), f.asset.Version != nil && f.version.Compare(f.asset.Version) != 0:
			others = append(others, name)
			continue
		}
		found[f.asset.Name] = true
		if best.name == "" || f.better(best) {
			best = f
		}
	}
	switch {
	case len(found) > 1:
		return file{}, fmt.Errorf("it has several plugins: name one of %s after the source", strings.Join(sorted(found), ", "))
	case len(found) == 1:
		return best, nil
	}
	what := "no plugin"
	if i.Name != "" {
		what = fmt.Sprintf("no plugin %q", i.Name)
	}
	if len(i.constraints) > 0 {
		what += " " + i.constraints.String()
	}
	has := "nothing of that kind"
	if len(others) > 0 {
		has = strings.Join(others[:min(len(others), 10)], ", ")
	}
	return file{}, fmt.Errorf("%s for linux/%s, called NAME_vX.Y.Z_linux_%s: it has %s", what, i.Arch, i.Arch, has)
}

// goodName matches the name of a plugin that the agent would run. It becomes part of paths.
var goodName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}$`) })

// isNoPlugin reports whether a file cannot be a plugin, by its name.
func isNoPlugin(name string) bool {
	return strings.HasPrefix(name, ".") || signing.IsProof(name) || name == sumsFile || isArchive(name)
}

// allows reports whether a version may be installed. Without a constraint, of several files a pre-release is not.
func (i *installation) allows(v *version.Version, files int) bool {
	switch {
	case v == nil:
		return true // the plugin says it
	case len(i.constraints) == 0:
		return v.Prerelease() == "" || files == 1
	default:
		return i.constraints.Check(v)
	}
}

// better reports whether a file is to be preferred: the higher version, then the one that names its architecture.
func (f file) better(o file) bool {
	switch {
	case f.version == nil || o.version == nil:
		return f.version != nil || o.version == nil && f.asset.Arch != ""
	case f.version.Compare(o.version) != 0:
		return f.version.GreaterThan(o.version)
	default:
		return f.asset.Arch != ""
	}
}

func sorted(set map[string]bool) (all []string) {
	for name := range set {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// proof returns what proves where a file comes from: its own signature, or the signed sums of the bundle. If the bundle
// has sums with the file, its checksum must be the one there.
func (b *bundle) proof(ctx context.Context, name, sha string) (p signing.Proof, err error) {
	sums, err := b.read(ctx, sumsFile, signing.MaxSums)
	if err != nil {
		return p, err
	}
	parsed, err := signing.ParseSums(sums)
	if err != nil {
		return p, err
	}
	want := signing.SumOf(parsed, name)
	if want != "" && want != sha {
		return p, fmt.Errorf("%s has sha256:%s, and %s says sha256:%s: fetch both again", name, sha, sumsFile, want)
	}
	if p.Signature, err = b.read(ctx, name+signing.SignatureEnd, signing.MaxSignature); err != nil || p.Signature != nil {
		return p, err
	}
	if want == "" {
		return p, nil
	}
	if p.Signature, err = b.read(ctx, sumsFile+signing.SignatureEnd, signing.MaxSignature); p.Signature != nil {
		p.Sums = sums
	}
	return p, err
}

// read reads a small file of a bundle; nil: there is none.
func (b *bundle) read(ctx context.Context, name string, most int64) ([]byte, error) {
	f, err := b.open(ctx, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", name, err)
	}
	defer f.Close()
	data, err := signing.ReadAll(f, most)
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", name, err)
	}
	return data, nil
}
