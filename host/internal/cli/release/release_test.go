package release_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"aead.dev/minisign"

	"github.com/pannier/pannier/host/internal/cli/release"
	"github.com/pannier/pannier/host/internal/system/signing"
	"github.com/pannier/pannier/test/lib/check"
)

// signer has a key.
type signer struct {
	key     signing.Key
	private minisign.PrivateKey
}

func newSigner(t *testing.T) signer {
	t.Helper()
	public, private, err := minisign.GenerateKey(rand.Reader)
	check.NoError(t, err)
	return signer{check.Must(signing.ParseKey(public.String()))(t), private}
}

// sign signs a file with a trusted comment.
func (s signer) sign(t *testing.T, path, comment string) {
	t.Helper()
	r := minisign.NewReader(bytes.NewReader(check.Must(os.ReadFile(path))(t)))
	_, _ = io.Copy(io.Discard, r) // it cannot fail
	write(t, path+".minisig", string(r.SignWithComments(s.private, comment, "")))
}

func write(t *testing.T, path, content string) {
	t.Helper()
	check.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	check.NoError(t, os.WriteFile(path, []byte(content), 0o755))
}

const bridge = "lib/pannier/plugins/csi-bridge"

// install puts a release into a folder, signed by its maintainers.
func install(t *testing.T, maintainers signer) (prefix string) {
	t.Helper()
	prefix = t.TempDir()
	var sums bytes.Buffer
	for _, file := range []string{"bin/pannier", "lib/pannier/csi-local", bridge} {
		write(t, filepath.Join(prefix, file), "the program "+file)
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256([]byte("the program "+file)), file)
	}
	write(t, prefix+"/lib/pannier/SHA256SUMS", sums.String())
	maintainers.sign(t, prefix+"/lib/pannier/SHA256SUMS", "Pannier v1.2.3")
	return prefix
}

// TestVerify changes an installation, and finds each change.
func TestVerify(t *testing.T) {
	maintainers, author := newSigner(t), newSigner(t)
	for name, c := range map[string]struct {
		change func(t *testing.T, prefix string)
		want   map[string]release.State // of files that are not ok
		good   bool
	}{
		"nothing": {change: func(*testing.T, string) {}, good: true},
		"a plugin changed": {
			change: func(t *testing.T, prefix string) { write(t, prefix+"/"+bridge, "the program of somebody else") },
			want:   map[string]release.State{bridge: release.Changed},
		},
		"the program changed": {
			change: func(t *testing.T, prefix string) { write(t, prefix+"/bin/pannier", "") },
			want:   map[string]release.State{"bin/pannier": release.Changed},
		},
		"a link to the same bytes": {
			change: func(t *testing.T, prefix string) {
				check.NoError(t, os.Rename(prefix+"/"+bridge, prefix+"/elsewhere"))
				check.NoError(t, os.Symlink(prefix+"/elsewhere", prefix+"/"+bridge))
			},
			want: map[string]release.State{bridge: release.Changed},
		},
		"a plugin missing": {
			change: func(t *testing.T, prefix string) { check.NoError(t, os.Remove(prefix+"/"+bridge)) },
			want:   map[string]release.State{bridge: release.Missing},
		},
		"a plugin more": {
			change: func(t *testing.T, prefix string) { write(t, prefix+"/lib/pannier/plugins/mine", "mine") },
			want:   map[string]release.State{"lib/pannier/plugins/mine": release.Unknown},
		},
		"a signed plugin more": {
			change: func(t *testing.T, prefix string) {
				path := prefix + "/lib/pannier/plugins/mine_v1.0.0"
				write(t, path, "mine")
				author.sign(t, path, "timestamp:1\tfile:mine_v1.0.0\thashed")
			},
			want: map[string]release.State{"lib/pannier/plugins/mine_v1.0.0": release.Signed},
			good: true,
		},
		"a plugin more under another's signature": {
			change: func(t *testing.T, prefix string) {
				path := prefix + "/lib/pannier/plugins/mine_v1.0.0"
				write(t, path, "mine")
				author.sign(t, path, "timestamp:1\tfile:other_v1.0.0\thashed")
			},
			want: map[string]release.State{"lib/pannier/plugins/mine_v1.0.0": release.Unknown},
		},
		"what the agent does not run": {
			change: func(t *testing.T, prefix string) { write(t, prefix+"/lib/pannier/plugins/.mine.source.json", "{}") },
			good:   true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			prefix := install(t, maintainers)
			c.change(t, prefix)
			got := check.Must(release.Verify(prefix+"/bin/pannier", []signing.Key{maintainers.key, author.key}))(t)
			if got.Key != maintainers.key.ID() || got.Release != "Pannier v1.2.3" || got.OK() != c.good || len(got.Files) < 3 {
				t.Errorf("the report is %+v", got)
			}
			for _, f := range got.Files {
				file := check.Must(filepath.Rel(prefix, f.Path))(t)
				want, named := c.want[file]
				if !named {
					want = release.OK
				}
				if f.State != want {
					t.Errorf("%s is %s (%s), not %s", file, f.State, f.Why, want)
				}
				delete(c.want, file)
			}
			if len(c.want) > 0 {
				t.Errorf("there is no %v in %+v", c.want, got)
			}
		})
	}
}

// TestChecksums changes the checksums and their signature, and takes none that are not signed by a given key.
func TestChecksums(t *testing.T) {
	maintainers, stranger := newSigner(t), newSigner(t)
	for name, c := range map[string]struct {
		change          func(t *testing.T, sums string)
		keys            []signing.Key
		refused, warned bool
	}{
		"of somebody else":    {change: func(t *testing.T, sums string) { stranger.sign(t, sums, "Pannier v1.2.3") }, refused: true},
		"changed":             {change: func(t *testing.T, sums string) { write(t, sums, "") }, refused: true},
		"damaged signature":   {change: func(t *testing.T, sums string) { write(t, sums+".minisig", "nonsense") }, refused: true},
		"no signature":        {change: func(t *testing.T, sums string) { check.NoError(t, os.Remove(sums+".minisig")) }, warned: true},
		"no key":              {change: func(*testing.T, string) {}, keys: []signing.Key{}, warned: true},
		"not there":           {change: func(t *testing.T, sums string) { check.NoError(t, os.Remove(sums)) }, refused: true},
		"no lines of sha256s": {change: func(t *testing.T, sums string) { write(t, sums, "nonsense"); maintainers.sign(t, sums, "") }, refused: true},
		"outside": {change: func(t *testing.T, sums string) {
			write(t, sums, fmt.Sprintf("%x  ../../etc/shadow\n", sha256.Sum256(nil)))
			maintainers.sign(t, sums, "")
		}, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			prefix := install(t, maintainers)
			c.change(t, prefix+"/lib/pannier/SHA256SUMS")
			keys := c.keys
			if keys == nil {
				keys = []signing.Key{maintainers.key}
			}
			got, err := release.Verify(prefix+"/bin/pannier", keys)
			if (err != nil) != c.refused {
				t.Errorf("the error is %v", err)
			}
			if (got.Problem != "") != c.warned || got.OK() && err == nil || got.Key != "" {
				t.Errorf("the report is %+v", got)
			}
		})
	}
}

// TestOtherProgram verifies a release that does not name the program that is installed.
func TestOtherProgram(t *testing.T) {
	maintainers := newSigner(t)
	prefix := install(t, maintainers)
	write(t, prefix+"/lib/pannier/SHA256SUMS", "")
	maintainers.sign(t, prefix+"/lib/pannier/SHA256SUMS", "Pannier v1.2.3")
	got := check.Must(release.Verify(prefix+"/bin/pannier", []signing.Key{maintainers.key}))(t)
	if got.OK() || len(got.Files) != 3 {
		t.Errorf("the report is %+v", got)
	}
}
