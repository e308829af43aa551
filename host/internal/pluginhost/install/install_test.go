package install

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"aead.dev/minisign"
	"github.com/google/go-containerregistry/pkg/registry"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/memory"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/pannier/pannier/host/internal/system/signing"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

// program returns a real plugin called fixture that reports a version and behaves as mode says.
func program(t *testing.T, mode, version string) []byte {
	t.Helper()
	path := testbin.BuildDir(t, filepath.Join(testbin.Root(), "host/internal/pluginhost/supervisor/testdata/plugin"))
	data, err := os.ReadFile(path)
	check.NoError(t, err)
	return fmt.Appendf(data, "\n#fixture %s %s\n", mode, version)
}

// author signs plugins.
type author struct {
	public  signing.Key
	private minisign.PrivateKey
}

func newAuthor(t *testing.T) author {
	t.Helper()
	public, private, err := minisign.GenerateKey(rand.Reader)
	check.NoError(t, err)
	key, err := signing.ParseKey(public.String())
	check.NoError(t, err)
	return author{key, private}
}

func (a author) sign(data []byte, file string) []byte {
	r := minisign.NewReader(bytes.NewReader(data))
	_, _ = io.Copy(io.Discard, r) // it cannot fail
	return r.SignWithComments(a.private, "timestamp:1\tfile:"+file+"\thashed", "a comment")
}

// files are the files of a source, by name.
type files map[string][]byte

// release is what an author publishes for a version: binaries, their sums, and the signature of these.
func release(t *testing.T, a author, versions ...string) files {
	t.Helper()
	all := files{}
	for _, v := range versions {
		all[fmt.Sprintf("fixture_v%s_linux_%s", v, runtime.GOARCH)] = program(t, "good", v)
	}
	all.sum(a)
	return all
}

// sum writes the signed sums of all files.
func (f files) sum(a author) {
	var sums []byte
	for _, name := range slices.Sorted(maps.Keys(f)) {
		sums = fmt.Appendf(sums, "%s  %s\n", sumText(f[name]), name)
	}
	f[sumsFile], f[sumsFile+signing.SignatureEnd] = sums, a.sign(sums, sumsFile)
}

func sumText(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func (f files) write(t *testing.T, dir string) {
	t.Helper()
	check.NoError(t, os.MkdirAll(dir, 0o755))
	for name, data := range f {
		check.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o755))
	}
}

// packed is a .tar.gz of all files, and more entries.
func (f files) packed(t *testing.T, more ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	check.NoError(t, err)
	archive := tar.NewWriter(zip)
	for _, h := range more {
		check.NoError(t, archive.WriteHeader(&h))
		_, err := archive.Write(make([]byte, h.Size))
		check.NoError(t, err)
	}
	for name, data := range f {
		check.NoError(t, archive.WriteHeader(&tar.Header{Name: "release/" + name, Mode: 0o644, Size: int64(len(data))}))
		_, err := archive.Write(data)
		check.NoError(t, err)
	}
	check.NoError(t, archive.Close())
	check.NoError(t, zip.Close())
	return out.Bytes()
}

// site is an HTTPS server whose files may change.
type site struct {
	*httptest.Server
	files files
}

func newSite(t *testing.T, f files) *site {
	t.Helper()
	s := &site{files: f}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, ok := s.files[strings.TrimPrefix(r.URL.Path, "/")]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(data)
	}))
	t.Cleanup(s.Close)
	return s
}

// reach makes NewHTTP's client trust a server's certificate.
func reach(s *httptest.Server) *http.Client {
	client := NewHTTP()
	trusting := s.Client().Transport.(*http.Transport).TLSClientConfig
	client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: trusting.RootCAs}
	return client
}

// A server that sends a byte at a time does not hold an installation for ever.
func TestSlowServer(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, "x")
			_ = http.NewResponseController(w).Flush()
		}
	}))
	defer s.Close()
	_, err := Install(t.Context(), Config{
		Source: s.URL + "/slow_v1.0.0", Dir: t.TempDir(), Arch: runtime.GOARCH, HTTP: reach(s), Timeout: 100 * time.Millisecond,
	})
	if err == nil || !strings.Contains(err.Error(), "given up after 100ms") {
		t.Errorf("got %v", err)
	}
}

// newRegistry starts an OCI registry.
func newRegistry(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewTLSServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(s.Close)
	return s
}

// push pushes files as an artifact, as oras push does.
func push(t *testing.T, s *httptest.Server, name, tag string, f files) {
	t.Helper()
	store := memory.New()
	var layers []ocispec.Descriptor
	for file, data := range f {
		d, err := oras.PushBytes(t.Context(), store, "application/octet-stream", data)
		check.NoError(t, err)
		d.Annotations = map[string]string{ocispec.AnnotationTitle: file}
		layers = append(layers, d)
	}
	manifest, err := oras.PackManifest(t.Context(), store, oras.PackManifestVersion1_1, "application/vnd.pannier.plugin",
		oras.PackManifestOptions{Layers: layers})
	check.NoError(t, err)
	check.NoError(t, store.Tag(t.Context(), manifest, tag))
	repo, err := remote.NewRepository(strings.TrimPrefix(s.URL, "https://") + "/" + name)
	check.NoError(t, err)
	repo.Client = s.Client()
	_, err = oras.Copy(t.Context(), store, tag, repo, tag, oras.DefaultCopyOptions)
	check.NoError(t, err)
}

// target is an installation into a new plugin directory that requires an author's signature.
func target(t *testing.T, a author) Config {
	t.Helper()
	return Config{
		Dir: filepath.Join(t.TempDir(), "plugins"), Arch: runtime.GOARCH, HTTP: NewHTTP(),
		Signing: signing.Policy{Keys: []signing.Key{a.public}, Required: true},
	}
}

// entries are the names in a directory.
func entries(t *testing.T, dir string) (names []string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	check.NoError(t, err)
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}

// From each kind of source the highest version that is allowed is installed, whole and with its signature, and an
// upgrade finds the next one there.
func TestInstallAndUpgrade(t *testing.T) {
	t.Parallel()
	a := newAuthor(t)
	first := release(t, a, "1.0.0", "1.2.0", "2.0.0", "1.3.0-rc.1")
	first["fixture_v1.9.0_linux_other"] = []byte("another machine's")
	first["LICENSE"] = []byte("free")
	first.sum(a)
	second := release(t, a, "1.2.0", "1.4.0", "3.0.0")
	bundle, next := first.packed(t), second.packed(t)
	byTag := func(t *testing.T, s *httptest.Server, f files) {
		for name := range f {
			if asset := signing.ParseAsset(name); asset.Name == "fixture" && !signing.IsProof(name) && asset.Arch != "other" {
				push(t, s, "plugins/fixture", asset.Version.String(),
					files{name: f[name], name + signing.SignatureEnd: a.sign(f[name], name)})
			}
		}
	}
	for kind, publish := range map[string]func(t *testing.T, cfg *Config) (upgrade func()){
		"directory": func(t *testing.T, cfg *Config) func() {
			cfg.Source = t.TempDir()
			first.write(t, cfg.Source)
			return func() { second.write(t, cfg.Source) }
		},
		"archive": func(t *testing.T, cfg *Config) func() {
			cfg.Source = filepath.Join(t.TempDir(), "bundle.tar.gz")
			check.NoError(t, os.WriteFile(cfg.Source, bundle, 0o644))
			return func() { check.NoError(t, os.WriteFile(cfg.Source, next, 0o644)) }
		},
		"https folder": func(t *testing.T, cfg *Config) func() {
			s := newSite(t, first)
			cfg.Source, cfg.HTTP = s.URL+"/", reach(s.Server)
			return func() { s.files = second }
		},
		"https archive": func(t *testing.T, cfg *Config) func() {
			s := newSite(t, files{"x.tar.gz": bundle})
			cfg.Source, cfg.HTTP = s.URL+"/x.tar.gz", reach(s.Server)
			cfg.SHA256 = sumText(s.files["x.tar.gz"])
			return func() { s.files, cfg.SHA256 = files{"x.tar.gz": next}, "" }
		},
		"registry": func(t *testing.T, cfg *Config) func() {
			s := newRegistry(t)
			cfg.Source, cfg.HTTP = "oci://"+strings.TrimPrefix(s.URL, "https://")+"/plugins/fixture", reach(s)
			byTag(t, s, first)
			return func() { byTag(t, s, second) }
		},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			cfg := target(t, a)
			upgrade := publish(t, &cfg)
			cfg.Versions = []string{"~> 1.0"}
			got, err := Install(t.Context(), cfg)
			if err != nil || got.Version != "1.2.0" || !got.New || !got.Signed || !got.Remembered {
				t.Fatalf("installed %+v, %v", got, err)
			}
			if data, err := os.ReadFile(got.Path); err != nil || !bytes.Equal(data, program(t, "good", "1.2.0")) ||
				filepath.Base(got.Path) != "fixture_v1.2.0" {
				t.Errorf("%s is not what was published: %v", got.Path, err)
			}
			proof, err := signing.Beside(got.Path)
			check.NoError(t, err)
			if _, err := cfg.Signing.Check("fixture", nil, bytes.NewReader(program(t, "good", "1.2.0")), proof); err != nil {
				t.Errorf("the signature beside it: %v", err)
			}
			if got, err := Install(t.Context(), cfg); err != nil || got.New {
				t.Errorf("installed again: %+v, %v", got, err)
			}
			from := Config{Name: "fixture", Dir: cfg.Dir, Arch: cfg.Arch, Signing: cfg.Signing, HTTP: cfg.HTTP}
			if got, err := Upgrade(t.Context(), from); err != nil || got.New || got.Version != "1.2.0" {
				t.Errorf("an upgrade to nothing newer: %+v, %v", got, err)
			}
			upgrade()
			if got, err := Upgrade(t.Context(), from); err != nil || !got.New || got.Version != "1.4.0" {
				t.Errorf("upgraded to %+v, %v", got, err)
			}
			have := slices.DeleteFunc(entries(t, cfg.Dir), signing.IsProof)
			if want := []string{".fixture.source.json", "fixture_v1.2.0", "fixture_v1.4.0"}; !slices.Equal(have, want) {
				t.Errorf("the plugin directory has %q, want %q", have, want)
			}
		})
	}
}

// A single file takes its version from the plugin, and needs no signature where no key is configured.
func TestInstallFile(t *testing.T) {
	t.Parallel()
	cfg := target(t, newAuthor(t))
	cfg.Signing = signing.Policy{}
	cfg.Source = filepath.Join(t.TempDir(), "fixture")
	check.NoError(t, os.WriteFile(cfg.Source, program(t, "good", "1.0.0"), 0o644))
	got, err := Install(t.Context(), cfg)
	if err != nil || filepath.Base(got.Path) != "fixture_v1.0.0" || got.Signed {
		t.Fatalf("installed %+v, %v", got, err)
	}
	first, err := os.ReadFile(got.Path)
	check.NoError(t, err)
	other := append(program(t, "good", "1.0.0"), "\n"...)
	check.NoError(t, os.WriteFile(cfg.Source, other, 0o644))
	_, err = Install(t.Context(), cfg)
	wantError(t, err, "is another binary of this version", "-force")
	if now, err := os.ReadFile(got.Path); err != nil || !bytes.Equal(now, first) {
		t.Errorf("it was replaced: %v", err)
	}
	cfg.Force = true
	if got, err = Install(t.Context(), cfg); err != nil || !got.New {
		t.Errorf("with -force: %+v, %v", got, err)
	}
	if now, err := os.ReadFile(got.Path); err != nil || !bytes.Equal(now, other) {
		t.Errorf("it was not replaced: %v", err)
	}
}

func wantError(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("error %v; want %q in it", err, w)
		}
	}
}

// What is not what the author published, or cannot be a plugin of this machine, is refused, and nothing is left.
func TestRefused(t *testing.T) {
	t.Parallel()
	a, stranger := newAuthor(t), newAuthor(t)
	name := "fixture_v1.0.0_linux_" + runtime.GOARCH
	good := program(t, "good", "1.0.0")
	// signed is a directory with one signed binary.
	signed := func(t *testing.T, cfg *Config, data []byte) {
		cfg.Source = t.TempDir()
		files{name: data, name + signing.SignatureEnd: a.sign(data, name)}.write(t, cfg.Source)
	}
	archive := func(t *testing.T, cfg *Config, data []byte) {
		cfg.Source = filepath.Join(t.TempDir(), "x.tgz")
		check.NoError(t, os.WriteFile(cfg.Source, data, 0o644))
	}
	// serve answers every request by a function.
	serve := func(t *testing.T, cfg *Config, answer http.HandlerFunc) {
		s := httptest.NewTLSServer(answer)
		t.Cleanup(s.Close)
		cfg.Source, cfg.HTTP = s.URL+"/"+name, reach(s)
	}
	entry := func(kind byte, name, link string) func(*testing.T, *Config) {
		return func(t *testing.T, cfg *Config) {
			archive(t, cfg, release(t, a, "1.0.0").packed(t, tar.Header{Typeflag: kind, Name: name, Linkname: link, Mode: 0o644}))
		}
	}
	for says, prepare := range map[string]func(t *testing.T, cfg *Config){
		"and sha256:" + strings.Repeat("0", 64) + " is wanted": func(t *testing.T, cfg *Config) {
			signed(t, cfg, good)
			cfg.SHA256 = strings.Repeat("0", 64)
		},
		"and sha256:" + strings.Repeat("1", 64) + " is wanted": func(t *testing.T, cfg *Config) {
			archive(t, cfg, release(t, a, "1.0.0").packed(t))
			cfg.SHA256 = strings.Repeat("1", 64)
		},
		"and SHA256SUMS says": func(t *testing.T, cfg *Config) { // also without any key
			f := release(t, a, "1.0.0")
			f[name] = append(f[name], '\n')
			cfg.Source, cfg.Signing = t.TempDir(), signing.Policy{}
			f.write(t, cfg.Source)
		},
		"it is not signed": func(t *testing.T, cfg *Config) {
			cfg.Source = t.TempDir()
			files{name: good}.write(t, cfg.Source)
		},
		"which is not one of the agent's": func(t *testing.T, cfg *Config) { // also where none is required
			cfg.Source, cfg.Signing.Required = t.TempDir(), false
			release(t, stranger, "1.0.0").write(t, cfg.Source)
		},
		"is of another file": func(t *testing.T, cfg *Config) {
			signed(t, cfg, good)
			check.NoError(t, os.WriteFile(filepath.Join(cfg.Source, name), append(good, '\n'), 0o644))
		},
		"the signature is of other": func(t *testing.T, cfg *Config) {
			cfg.Source = t.TempDir()
			files{name: good, name + signing.SignatureEnd: a.sign(good, "other_v1.0.0")}.write(t, cfg.Source)
		},
		"it is for s390x, and this machine is " + runtime.GOARCH: func(t *testing.T, cfg *Config) {
			data := bytes.Clone(good)
			binary.LittleEndian.PutUint16(data[18:], 22) // e_machine of EM_S390, elf(5)
			signed(t, cfg, data)
		},
		"no plugin for linux/" + runtime.GOARCH: func(t *testing.T, cfg *Config) {
			cfg.Source = t.TempDir()
			files{"fixture_v1.0.0_linux_s390x": good}.write(t, cfg.Source)
		},
		"no plugin \"fixture\" ~> 9.0": func(t *testing.T, cfg *Config) {
			signed(t, cfg, good)
			cfg.Name, cfg.Versions = "fixture", []string{"~> 9.0"}
		},
		"neither a Linux program nor a script": func(t *testing.T, cfg *Config) { signed(t, cfg, []byte("hello")) },
		"it reports the version 1.8.0, and its file or its signature is of 1.0.0": func(t *testing.T, cfg *Config) {
			signed(t, cfg, program(t, "good", "1.8.0"))
		},
		"it reports the version 1.1.0, and its file or its signature is of 1.0.0": func(t *testing.T, cfg *Config) {
			data := program(t, "good", "1.1.0")
			cfg.Source = t.TempDir()
			files{"fixture": data, "fixture" + signing.SignatureEnd: a.sign(data, "fixture_v1.0.0")}.write(t, cfg.Source)
		},
		`it reports that it is the plugin "fixture"`: func(t *testing.T, cfg *Config) {
			cfg.Source, cfg.Signing = t.TempDir(), signing.Policy{}
			files{"other_v1.0.0": good}.write(t, cfg.Source)
		},
		"it does not work as a plugin": func(t *testing.T, cfg *Config) {
			signed(t, cfg, program(t, "exit", "1.0.0"))
		},
		`"../evil", which leads out of it`: entry(tar.TypeReg, "../evil", ""),
		`"/tmp/evil", which leads out`:     entry(tar.TypeReg, "/tmp/evil", ""),
		`"link", which is neither`:         entry(tar.TypeSymlink, "link", "/etc"),
		`"hard", which is neither`:         entry(tar.TypeLink, "hard", "/etc/passwd"),
		`"null", which is neither`:         entry(tar.TypeChar, "null", ""),
		"more than 1000 entries": func(t *testing.T, cfg *Config) {
			archive(t, cfg, files{}.packed(t, slices.Repeat([]tar.Header{{Typeflag: tar.TypeDir, Name: "d/"}}, 1001)...))
		},
		"the archive is damaged": func(t *testing.T, cfg *Config) {
			data := release(t, a, "1.0.0").packed(t)
			archive(t, cfg, data[:len(data)/2])
		},
		"it ended after": func(t *testing.T, cfg *Config) {
			serve(t, cfg, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", fmt.Sprint(len(good)))
				_, _ = w.Write(good[:len(good)/2])
			})
		},
		"which is not https": func(t *testing.T, cfg *Config) {
			serve(t, cfg, func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "http://127.0.0.1/secret", http.StatusFound)
			})
		},
		"certificate": func(t *testing.T, cfg *Config) {
			cfg.Source = newSite(t, files{name: good}).URL + "/" + name // its authority is not known
		},
		"http is refused": func(_ *testing.T, cfg *Config) { cfg.Source = "http://127.0.0.1/x" },
		"has a user":      func(_ *testing.T, cfg *Config) { cfg.Source = "https://me:secret@127.0.0.1/x" },
		"REDACTED answers 500": func(t *testing.T, cfg *Config) {
			serve(t, cfg, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
			cfg.Source += "?token=secret"
		},
		"no plugin for": func(t *testing.T, cfg *Config) { // names of a server do not become paths
			s := newSite(t, files{})
			s.files["d/../../evil_v1.0.0"] = good
			s.files[sumsFile] = fmt.Appendf(nil, "%s  ../../evil_v1.0.0\n", sumText(good))
			cfg.Source, cfg.HTTP = s.URL+"/", reach(s.Server)
		},
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			cfg := target(t, a)
			prepare(t, &cfg)
			_, err := Install(t.Context(), cfg)
			wantError(t, err, says)
			if err != nil && strings.Contains(err.Error(), "secret") && !strings.Contains(says, "not https") {
				t.Errorf("a secret is shown: %v", err)
			}
			if left := entries(t, cfg.Dir); len(left) > 0 {
				t.Errorf("left in the plugin directory: %q", left)
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(cfg.Dir), "evil")); err == nil {
				t.Error("a file was written outside")
			}
		})
	}
}

// A layer that a registry changed is refused by its digest.
func TestChangedLayer(t *testing.T) {
	t.Parallel()
	good := program(t, "good", "1.0.0")
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, sumText(good)) {
			_, _ = w.Write(append(good[:len(good)-1:len(good)-1], ' '))
			return
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	push(t, s, "fixture", "1.0.0", files{"fixture": good})
	cfg := target(t, newAuthor(t))
	cfg.Signing, cfg.HTTP = signing.Policy{}, reach(s)
	cfg.Source = "oci://" + strings.TrimPrefix(s.URL, "https://") + "/fixture:1.0.0"
	_, err := Install(t.Context(), cfg)
	wantError(t, err, "mismatch")
	if left := entries(t, cfg.Dir); len(left) > 0 {
		t.Errorf("left in the plugin directory: %q", left)
	}
}

// An archive with more than its bound is refused, also where its file has a hole that takes no room in it; and nothing
// of an archive is looked at before its checksum is proven.
func TestHugeArchive(t *testing.T) {
	defer func(was int64) { maxUnpacked = was }(maxUnpacked)
	maxUnpacked = 1 << 20
	for name, data := range map[string][]byte{
		"zeros": files{}.packed(t, tar.Header{Name: "zeros", Size: 64 << 20, Mode: 0o644}), "a hole": sparse(t, 64<<20),
	} {
		for sum, says := range map[string]string{"": "larger than 1048576 bytes", strings.Repeat("0", 64): "is wanted"} {
			cfg := target(t, newAuthor(t))
			cfg.Source, cfg.SHA256 = filepath.Join(t.TempDir(), "x.tar.gz"), sum
			check.NoError(t, os.WriteFile(cfg.Source, data, 0o644))
			_, err := Install(t.Context(), cfg)
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%s, an archive of %d bytes: error %v; want %q in it", name, len(data), err, says)
			}
			if left := entries(t, cfg.Dir); len(left) > 0 {
				t.Errorf("left in the plugin directory: %q", left)
			}
		}
	}
}

// sparse is an archive of one file that is a hole, in the format of GNU tar 1.0.
func sparse(t *testing.T, size int) []byte {
	t.Helper()
	var records, plain, packed bytes.Buffer
	for _, r := range []string{"major=1", "minor=0", "name=hole", fmt.Sprintf("realsize=%d", size)} {
		r = " GNU.sparse." + r + "\n"
		fmt.Fprintf(&records, "%d%s", len(r)+2, r)
	}
	archive := tar.NewWriter(&plain)
	for _, data := range [][]byte{records.Bytes(), append(fmt.Appendf(nil, "1\n%d\n0\n", size), make([]byte, 512)...)[:512]} {
		check.NoError(t, archive.WriteHeader(&tar.Header{Name: "hole", Mode: 0o644, Size: int64(len(data))}))
		_, err := archive.Write(data)
		check.NoError(t, err)
	}
	check.NoError(t, archive.Close())
	block := plain.Bytes()
	block[156] = tar.TypeXHeader // which the package does not write
	sum := 8 * int(' ')
	for i, b := range block[:512] {
		if i < 148 || i >= 156 {
			sum += int(b)
		}
	}
	copy(block[148:156], fmt.Sprintf("%06o\x00 ", sum))
	zip := gzip.NewWriter(&packed)
	_, err := zip.Write(block)
	check.NoError(t, errors.Join(err, zip.Close()))
	return packed.Bytes()
}

func TestUpgradeOfNothing(t *testing.T) {
	t.Parallel()
	cfg := target(t, newAuthor(t))
	cfg.Name = "fixture"
	_, err := Upgrade(context.Background(), cfg)
	wantError(t, err, "use pannier agent plugin install SOURCE")
}
