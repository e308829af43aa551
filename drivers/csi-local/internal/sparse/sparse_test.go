package sparse

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"github.com/pannier/pannier/test/lib/check"
)

const mib = 1 << 20

// sparseFile makes a file of the given size with data written at some offsets.
func sparseFile(t testing.TB, path string, size int64, data map[int64][]byte) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	check.NoError(t, err)
	check.NoError(t, f.Truncate(size))
	for at, b := range data {
		if _, err := f.WriteAt(b, at); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// TestCopyReadsBackTheSame copies files with any layout of data and holes.
func TestCopyReadsBackTheSame(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.Int64Range(0, 3*mib).Draw(rt, "size")
		data := map[int64][]byte{}
		for range rapid.IntRange(0, 4).Draw(rt, "extents") {
			if size == 0 {
				break
			}
			at := rapid.Int64Range(0, size-1).Draw(rt, "at")
			n := min(rapid.Int64Range(1, 300_000).Draw(rt, "n"), size-at)
			data[at] = bytes.Repeat([]byte{byte(rapid.IntRange(0, 255).Draw(rt, "byte"))}, int(n))
		}
		src := sparseFile(t, filepath.Join(dir, "src"), size, data)
		defer src.Close()
		dst := sparseFile(t, filepath.Join(dir, "dst"), 0, nil)
		defer dst.Close()
		if err := Copy(context.Background(), dst, src); err != nil {
			rt.Fatal(err)
		}
		want, err1 := os.ReadFile(src.Name())
		got, err2 := os.ReadFile(dst.Name())
		if err := errors.Join(err1, err2); err != nil {
			rt.Fatal(err)
		}
		if !bytes.Equal(want, got) {
			rt.Fatal("the copy differs")
		}
		blank, err := Blank(context.Background(), src)
		if err != nil {
			rt.Fatal(err)
		}
		if want := len(bytes.Trim(want, "\x00")) == 0; blank != want {
			rt.Fatalf("blank is %t, want %t", blank, want)
		}
	})
}

func TestCopyKeepsHoles(t *testing.T) {
	dir := t.TempDir()
	src := sparseFile(t, filepath.Join(dir, "src"), 64*mib, map[int64][]byte{40 * mib: []byte("x")})
	defer src.Close()
	dst := sparseFile(t, filepath.Join(dir, "dst"), 0, nil)
	defer dst.Close()
	check.NoError(t, Copy(t.Context(), dst, src))
	if n, err := Allocated(dst); err != nil || n > mib {
		t.Errorf("%d bytes allocated for one, %v", n, err)
	}
}

func TestCopyStopsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	src := sparseFile(t, filepath.Join(dir, "src"), mib, map[int64][]byte{0: []byte("x")})
	defer src.Close()
	dst := sparseFile(t, filepath.Join(dir, "dst"), 0, nil)
	defer dst.Close()
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if err := Copy(ctx, dst, src); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
}
