package install

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"

	"github.com/pannier/pannier/test/lib/check"
)

// Any bytes are an archive whose files are within the bound in all, or are refused; and nothing else is written.
func FuzzArchive(f *testing.F) {
	f.Add(files{"fixture_v1.0.0": []byte("x"), sumsFile: nil}.packed(&testing.T{}))
	f.Add(sparse(&testing.T{}, 64<<20))
	f.Fuzz(func(t *testing.T, data []byte) {
		i := installation{stage: t.TempDir()}
		b, err := i.openArchive(bytes.NewReader(data))
		if left := entries(t, i.stage); len(left) != 1 {
			t.Errorf("it has written %q", left)
		}
		if err != nil {
			return
		}
		var all int64
		for _, name := range b.names {
			r := check.Must(b.open(t.Context(), name))(t)
			n, err := io.Copy(io.Discard, r)
			if all += n; err != nil || all > maxUnpacked {
				t.Errorf("%s: %d bytes were read, %v", name, n, err)
			}
			check.NoError(t, r.Close())
		}
		if _, err := b.open(t.Context(), "not there"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a file that is not there: %v", err)
		}
		if _, err := os.Lstat(filepath.Join(i.stage, "bundle")); err == nil {
			t.Error("it was unpacked")
		}
	})
}

// answers is a registry that answers all requests alike.
type answers []byte

func (a answers) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK, Request: req, Body: io.NopCloser(bytes.NewReader(a)), ContentLength: int64(len(a)),
		Header: http.Header{
			"Content-Type":          {ocispec.MediaTypeImageManifest},
			"Docker-Content-Digest": {content.NewDescriptorFromBytes("", a).Digest.String()},
		},
	}, nil
}

// Whatever a registry answers, the files of an artifact are names without a path.
func FuzzRegistry(f *testing.F) {
	f.Add([]byte(`{"layers": [{"annotations": {"org.opencontainers.image.title": "p_v1.0.0"}}]}`))
	f.Add([]byte(`{"layers": [{"annotations": {"org.opencontainers.image.title": "../p_v1.0.0"}}, {}]}`))
	f.Add([]byte(`{"tags": ["1.0.0", "x", "2.0.0-rc1"]}`))
	f.Add([]byte(`{"manifests": [{"platform": {"os": "linux", "architecture": "amd64"}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, source := range []string{"oci://registry.example/p:1.0.0", "oci://registry.example/p"} {
			i := installation{Config: Config{Source: source, Arch: "amd64", HTTP: &http.Client{Transport: answers(data)}}}
			b, err := i.openOCI(t.Context())
			if err != nil {
				continue
			}
			for _, name := range b.names {
				if strings.Contains(name, "/") {
					t.Errorf("it has the file %q", name)
				}
			}
		}
	})
}
