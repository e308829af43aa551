package install

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-version"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/system/signing"
	"github.com/pannier/pannier/internal/atomicfile"
	"github.com/pannier/pannier/internal/trusted"
	"github.com/pannier/pannier/sdk/conformance"
)

// staging is the name of the directory in the plugin directory in which a plugin is checked.
const staging = ".install"

// maxBinary bounds a plugin's file, in bytes.
const maxBinary = 1 << 30

// Config says what to install, and where.
type Config struct {
	// Source is a path, or an address that begins with https:// or oci://.
	Source string
	// Name of the plugin. Empty: the only one that the source has.
	Name string
	// Versions are constraints that the version must satisfy, such as "~> 1.2"; empty ones are ignored.
	Versions []string
	// SHA256 of the source's file: of the archive if it is one, else of the binary; 64 hex digits. Empty: any.
	SHA256 string
	// Force replaces an installed binary of the same version that differs.
	Force bool
	// Dir is the plugin directory; absolute. It is made if it does not exist.
	Dir string
	// Arch is the architecture that the plugin must be for, Go's name.
	Arch string
	// Args of the plugins that are started with some, by their names.
	Args map[string][]string
	// Signing has the keys that count. One of them must have signed the plugin if a signature is required, or if there
	// is one.
	Signing signing.Policy
	// HTTP makes requests to https addresses and registries, see NewHTTP.
	HTTP *http.Client
	// Timeout of the whole; 0: an hour.
	Timeout time.Duration
}

// Installed is a plugin in the plugin directory.
type Installed struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	SHA256  string `json:"sha256"`
	Path    string `json:"path"`
	Signed  bool   `json:"signed"` // by one of the keys
	// New is true if it was not there before.
	New bool `json:"new"`
	// Remembered is true if an upgrade finds newer versions at the source.
	Remembered bool `json:"remembered"`
}

// installation is one call of Install or Upgrade.
type installation struct {
	Config
	constraints version.Constraints
	stage       string           // the staging directory
	above       *version.Version // of an upgrade: the version that is installed; nil: none
}

// Install puts a plugin into the plugin directory as NAME_vX.Y.Z: the highest version that the constraints allow.
func Install(ctx context.Context, cfg Config) (Installed, error) {
	got, err := install(ctx, cfg, false)
	if err != nil {
		return Installed{}, fmt.Errorf("install from %s: %w", Redacted(cfg.Source), err)
	}
	return got, nil
}

// Upgrade installs the highest version that the source of cfg.Name has, if that is higher than the highest one that is
// installed; otherwise it returns the latter. cfg needs no source: it is the one that the plugin was installed from.
// Nor, without Versions, a constraint.
func Upgrade(ctx context.Context, cfg Config) (Installed, error) {
	origin, err := loadOrigin(cfg.Dir, cfg.Name)
	if err != nil {
		return Installed{}, err
	}
	cfg.Source = origin.Source
	if len(cfg.Versions) == 0 || cfg.Versions[0] == "" {
		cfg.Versions = append([]string{origin.Version}, cfg.Versions...)
	}
	got, err := install(ctx, cfg, true)
	if err != nil {
		return Installed{}, fmt.Errorf("upgrade from %s: %w", cfg.Source, err)
	}
	return got, nil
}

func install(ctx context.Context, cfg Config, upgrade bool) (got Installed, err error) {
	limit := cmp.Or(cfg.Timeout, time.Hour)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer func() {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) && err != nil {
			err = fmt.Errorf("it was given up after %s: install from a faster source, or from a copy on this host (%w)", limit, err)
		}
	}()
	i := &installation{Config: cfg, stage: filepath.Join(cfg.Dir, staging)}
	for _, text := range cfg.Versions {
		if text == "" {
			continue
		}
		c, err := version.NewConstraint(text)
		if err != nil {
			return got, fmt.Errorf("%q is no constraint such as %q", text, "~> 1.2")
		}
		i.constraints = append(i.constraints, c...)
	}
	if upgrade {
		if i.above, err = signing.Newest(cfg.Dir, cfg.Name); err != nil {
			return got, err
		}
		if i.above == nil {
			return got, fmt.Errorf("no version of plugin %q is in %s: use pannier agent plugin install SOURCE", cfg.Name,
				cfg.Dir)
		}
	}
	unlock, err := i.prepare()
	if err != nil {
		return got, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(i.stage), unlock()) }()
	b, err := i.open(ctx)
	if err != nil {
		return got, err
	}
	f, err := i.choose(b)
	if err != nil {
		return got, err
	}
	if f.version != nil && i.isInstalled(f.version) {
		return i.present(f.asset.Name)
	}
	return i.fetchAndPlace(ctx, b, f)
}

// prepare makes an empty staging directory, and keeps other installations out.
func (i *installation) prepare() (unlock func() error, err error) {
	if !filepath.IsAbs(i.Dir) {
		return nil, fmt.Errorf("the plugin directory must be absolute, not %q", i.Dir)
	}
	if err := trusted.MkdirAll(i.Dir, 0o755); err != nil {
		return nil, err
	}
	if err := trusted.Dir(i.Dir); err != nil {
		return nil, err
	}
	lock, err := os.Open(i.Dir)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("another installation into %s is running: wait until it has ended", i.Dir)
	}
	if err == nil {
		err = os.RemoveAll(i.stage) // of one that was killed
	}
	if err == nil {
		err = os.Mkdir(i.stage, 0o755) // an agent of another user reads it
	}
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	return func() error { // a program that is being started may still have the descriptor
		return errors.Join(unix.Flock(int(lock.Fd()), unix.LOCK_UN), lock.Close())
	}, nil
}

// fetchAndPlace fetches a plugin, checks it, and puts it into the plugin directory.
func (i *installation) fetchAndPlace(ctx context.Context, b *bundle, f file) (Installed, error) {
	name := f.asset.Name
	if f.version != nil {
		name += "_v" + f.version.String()
	}
	path := filepath.Join(i.stage, name)
	sha, err := i.fetch(ctx, b, f.name, path)
	if err != nil {
		return Installed{}, fmt.Errorf("fetch %s: %w", f.name, err)
	}
	proof, err := b.proof(ctx, f.name, sha)
	if err != nil {
		return Installed{}, err
	}
	signed, err := i.check(path, sha, f, proof)
	if err != nil {
		return Installed{}, fmt.Errorf("%s: %w", f.name, err)
	}
	v, err := i.tryOut(ctx, path, f, signed)
	if err != nil {
		return Installed{}, fmt.Errorf("%s: %w", f.name, err)
	}
	if i.isInstalled(v) {
		return i.present(f.asset.Name)
	}
	got := Installed{
		Name: f.asset.Name, Version: v.String(), SHA256: sha,
		Signed: len(i.Signing.Keys) > 0 && len(proof.Signature) > 0, Path: filepath.Join(i.Dir, f.asset.Name+"_v"+v.String()),
	}
	err = i.place(path, proof, &got)
	return got, err
}

// fetch writes a file of a bundle to the disk, and returns its checksum.
func (i *installation) fetch(ctx context.Context, b *bundle, name, path string) (sha string, err error) {
	in, err := b.open(ctx, name)
	if err != nil {
		return "", err
	}
	defer in.Close()
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(out, sum), io.LimitReader(in, maxBinary+1))
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "", fmt.Errorf("it ended after %d bytes: try again: %w", n, err)
	case err != nil:
		return "", err
	case n > maxBinary:
		return "", fmt.Errorf("it is larger than %d bytes", maxBinary)
	}
	return hex.EncodeToString(sum.Sum(nil)), errors.Join(out.Chmod(0o755), out.Sync())
}

// tryOut starts the plugin, and returns the version that it reports. It must be the one of its file's name, and the one
// that was signed; nil: there is none.
func (i *installation) tryOut(ctx context.Context, path string, f file, signed *version.Version) (*version.Version,
	error,
) {
	info, err := conformance.Inspect(ctx, path, i.Args[f.asset.Name]...)
	if err != nil {
		return nil, fmt.Errorf("it does not work as a plugin: %w", err)
	}
	if name := info.GetName(); name != f.asset.Name {
		return nil, fmt.Errorf("it reports that it is the plugin %q: its file must be called so", name)
	}
	v, err := version.NewSemver(info.GetVersion())
	if err != nil {
		return nil, fmt.Errorf("it reports the version %q, which is none such as 1.2.3", info.GetVersion())
	}
	for _, want := range []*version.Version{f.version, signed} {
		if want != nil && v.Compare(want) != 0 {
			return nil, fmt.Errorf("it reports the version %s, and its file or its signature is of %s", v, want)
		}
	}
	if f.version != nil {
		return f.version, nil // the name of a release has no build metadata
	}
	if !i.constraints.Check(v) {
		return nil, fmt.Errorf("its version is %s, and %s is wanted", v, i.constraints)
	}
	return v, nil
}

// place puts what was checked into the plugin directory. The binary comes last, so that the agent finds the rest.
func (i *installation) place(staged string, proof signing.Proof, got *Installed) error {
	have, err := signing.FileSum(got.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		got.New = true
	case err != nil:
		return err
	case have != got.SHA256 && !i.Force:
		return fmt.Errorf("%s is another binary of this version, sha256:%s: -force replaces it", got.Path, have)
	case have != got.SHA256:
		got.New = true
	}
	if len(proof.Signature) > 0 || got.New {
		if err := proof.Write(got.Path); err != nil {
			return err
		}
	}
	origin := origin{Source: i.Source}
	if len(i.Versions) > 0 {
		origin.Version = i.Versions[0]
	}
	if got.Remembered, err = origin.save(i.Dir, got.Name); err != nil {
		return err
	}
	if got.New {
		if err := os.Rename(staged, got.Path); err != nil {
			return err
		}
	}
	return atomicfile.SyncDir(i.Dir)
}

// isInstalled reports whether an upgrade to a version is none.
func (i *installation) isInstalled(v *version.Version) bool {
	return i.above != nil && v.Compare(i.above) <= 0
}

// present describes the highest version that is installed.
func (i *installation) present(name string) (Installed, error) {
	path := filepath.Join(i.Dir, name+"_v"+i.above.String())
	sha, err := signing.FileSum(path)
	return Installed{Name: name, Version: i.above.String(), SHA256: sha, Path: path, Remembered: true}, err
}
