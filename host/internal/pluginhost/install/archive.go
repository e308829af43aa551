package install

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// What an archive may contain, so that a small one does not fill the disk.
const maxEntries = 1000

var maxUnpacked int64 = 4 << 30 // bytes; fewer in tests

func isArchive(name string) bool {
	return strings.HasSuffix(name, ".tar.gz") || strings.HasSuffix(name, ".tgz")
}

// openArchive makes a bundle of an archive whose files are all at its top, or in one folder. The archive is copied and
// its checksum proven first; nothing is unpacked: a file is read from the copy, by whoever bounds what is written of
// it.
func (i *installation) openArchive(r io.Reader) (*bundle, error) {
	sum := sha256.New()
	at := filepath.Join(i.stage, "archive")
	if err := write(at, io.TeeReader(io.LimitReader(r, maxUnpacked), sum)); err != nil {
		return nil, err
	}
	if err := i.checkSum(hex.EncodeToString(sum.Sum(nil))); err != nil {
		return nil, err
	}
	i.SHA256 = "" // it is not the binary's
	names, err := list(at)
	if err != nil {
		return nil, err
	}
	folder := ""
	if len(names) > 0 {
		folder, _, _ = strings.Cut(names[0], "/")
		folder += "/"
	}
	if slices.ContainsFunc(names, func(name string) bool { return !strings.HasPrefix(name, folder) }) {
		folder = ""
	}
	b := &bundle{open: func(_ context.Context, name string) (io.ReadCloser, error) {
		if !slices.Contains(names, folder+name) {
			return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
		}
		return openEntry(at, folder+name)
	}}
	for _, name := range names {
		if name = strings.TrimPrefix(name, folder); !strings.Contains(name, "/") {
			b.names = append(b.names, name)
		}
	}
	return b, nil
}

// list returns the regular files of an archive. Links, devices, names that lead out of it and files of more than
// maxUnpacked bytes in all are refused; the holes of a sparse file count.
func list(at string) (names []string, err error) {
	archive, err := openTar(at)
	if err != nil {
		return nil, err
	}
	defer archive.Close()
	left := maxUnpacked
	for n := 0; ; n++ {
		h, err := archive.Next()
		switch {
		case errors.Is(err, io.EOF):
			return names, nil
		case err != nil:
			return nil, damaged(err)
		case n >= maxEntries:
			return nil, fmt.Errorf("the archive has more than %d entries", maxEntries)
		case h.Typeflag == tar.TypeDir, h.Typeflag == tar.TypeXGlobalHeader:
			continue
		case h.Typeflag != tar.TypeReg:
			return nil, fmt.Errorf("the archive has %q, which is neither a file nor a folder", h.Name)
		case !filepath.IsLocal(h.Name):
			return nil, fmt.Errorf("the archive has %q, which leads out of it", h.Name)
		case h.Size > left:
			return nil, damaged(fmt.Errorf("%q has %d", h.Name, h.Size))
		}
		left -= h.Size
		names = append(names, filepath.Clean(h.Name))
	}
}

// tarReader reads an archive in a file.
type tarReader struct {
	*tar.Reader
	io.Closer
}

func openTar(at string) (*tarReader, error) {
	f, err := os.Open(at)
	if err != nil {
		return nil, err
	}
	packed, err := gzip.NewReader(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("it is not a .tar.gz: %w", err), f.Close())
	}
	return &tarReader{tar.NewReader(io.LimitReader(packed, maxUnpacked)), f}, nil
}

// openEntry opens the first file of a name that an archive has.
func openEntry(at, name string) (io.ReadCloser, error) {
	archive, err := openTar(at)
	if err != nil {
		return nil, err
	}
	for {
		h, err := archive.Next()
		if err != nil {
			return nil, errors.Join(damaged(err), archive.Close())
		}
		if h.Typeflag == tar.TypeReg && filepath.Clean(h.Name) == name {
			return archive, nil
		}
	}
}

func damaged(err error) error {
	return fmt.Errorf("the archive is damaged, or larger than %d bytes: %w", maxUnpacked, err)
}

func write(path string, r io.Reader) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = io.Copy(f, r)
	return err
}
