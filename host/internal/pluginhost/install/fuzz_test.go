package install

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

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
