package release

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/system/signing"
)

// Below the folder with bin: what is installed, and the checksums.
const (
	libraries = "lib/pannier"
	sumsFile  = "SHA256SUMS"
)

// State of a file.
type State string

// The states.
const (
	// OK is a file that has the signed checksum.
	OK State = "ok"
	// Signed is a plugin that is not of the release, and that a key has signed by itself.
	Signed State = "signed"
	// Changed is a file that differs from the release's.
	Changed State = "changed"
	// Missing is a file of the release that is not there.
	Missing State = "missing"
	// Unknown is a file among the release's that nobody has signed.
	Unknown State = "unknown"
)

// File is an installed file, or one that is missing.
type File struct {
	Path  string `json:"path"`
	State State  `json:"state"`
	Why   string `json:"why,omitempty"`
}

// Report is what is installed.
type Report struct {
	// Release is what the signature says about itself, such as "Pannier v1.2.3", and Key the id of the signing key. Both
	// are empty if the checksums are not trusted; Problem explains why.
	Release string `json:"release,omitempty"`
	Key     string `json:"key,omitempty"`
	Problem string `json:"problem,omitempty"`
	Files   []File `json:"files"`
}

// OK reports whether all is as it was released.
func (r Report) OK() bool {
	return r.Problem == "" && !slices.ContainsFunc(r.Files, func(f File) bool { return f.State != OK && f.State != Signed })
}

// Verify compares what is installed with program, /usr/bin/pannier, and what lies in /usr/lib/pannier.
func Verify(program string, keys []signing.Key) (Report, error) {
	prefix := filepath.Dir(filepath.Dir(program))
	path := filepath.Join(prefix, libraries, sumsFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Report{}, fmt.Errorf("%s was not installed from a package: there is no %s", program, path)
	}
	if err != nil {
		return Report{}, err
	}
	sums, err := signing.ParseSums(text)
	if err != nil {
		return Report{}, fmt.Errorf("%s: %w", path, err)
	}
	r := Report{}
	signature, err := os.ReadFile(path + signing.SignatureEnd)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r.Problem = path + " is not signed: it shows accidents, but who can change programs can change it too"
	case err != nil:
		return Report{}, err
	case len(keys) == 0:
		r.Problem = "this program has no key of releases, so the signature of " + path + " is not checked: give it by -key"
	default:
		key, comment, err := signing.Signed(keys, text, signature)
		if err != nil {
			return Report{}, fmt.Errorf("%s: %w", path, err)
		}
		r.Release, r.Key = comment, key.ID()
	}
	if r.Files, err = compare(prefix, program, sums, keys); err != nil {
		return Report{}, err
	}
	return r, nil
}

// compare compares the files of a release with those below prefix.
func compare(prefix, program string, sums []signing.Sum, keys []signing.Key) ([]File, error) {
	var files []File
	listed := map[string]bool{}
	for _, s := range sums {
		if !filepath.IsLocal(s.File) {
			return nil, fmt.Errorf("%s: %q is not below the folder of the installation", sumsFile, s.File)
		}
		f := File{Path: filepath.Join(prefix, s.File), State: OK}
		listed[f.Path] = true
		sum, err := sumOf(f.Path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			f.State = Missing
		case errors.Is(err, errNoFile):
			f.State, f.Why = Changed, err.Error()
		case err != nil:
			return nil, err
		case sum != s.SHA256:
			f.State, f.Why = Changed, fmt.Sprintf("has sha256:%s, not sha256:%s", sum, s.SHA256)
		}
		files = append(files, f)
	}
	others, err := installed(filepath.Join(prefix, libraries))
	if err != nil {
		return nil, err
	}
	for _, path := range append(others, program) {
		if !listed[path] {
			files = append(files, other(path, keys))
		}
	}
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	return files, nil
}

// errNoFile is of something else than a file.
var errNoFile = errors.New("is no regular file")

// open opens a regular file. It follows no link at its end.
func open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
		return nil, errNoFile
	}
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(cmp.Or(err, errNoFile), f.Close())
	}
	return f, nil
}

func sumOf(path string) (string, error) {
	f, err := open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return signing.ReadSum(f)
}

// installed lists what lies in the folder of the libraries and could be run from there. The agent runs no file whose
// name begins with a dot.
func installed(dir string) (paths []string, err error) {
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path != dir && strings.HasPrefix(e.Name(), "."):
			if e.IsDir() {
				return fs.SkipDir
			}
		case !e.IsDir() && path != filepath.Join(dir, sumsFile) && !signing.IsProof(path):
			paths = append(paths, path)
		}
		return nil
	})
	return paths, err
}

// other judges a file that is not of the release: a plugin that was added must be signed by itself.
func other(path string, keys []signing.Key) File {
	why := func(err error) File { return File{Path: path, State: Unknown, Why: err.Error()} }
	f, err := open(path)
	if err != nil {
		return why(err)
	}
	defer f.Close()
	proof, err := signing.Beside(path)
	if err != nil {
		return why(err)
	}
	if len(keys) == 0 || len(proof.Signature) == 0 {
		return why(errors.New("is not of the release, and not signed"))
	}
	name, v := signing.SplitVersion(filepath.Base(path))
	if _, err := (signing.Policy{Keys: keys}).Check(name, v, f, proof); err != nil {
		return why(err)
	}
	return File{Path: path, State: Signed}
}
