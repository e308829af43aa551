package install

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// What an archive may contain, so that a small one does not fill the disk.
const maxEntries = 1000

var maxUnpacked int64 = 4 << 30 // bytes; fewer in tests

func isArchive(name string) bool {
	return strings.HasSuffix(name, ".tar.gz") || strings.HasSuffix(name, ".tgz")
}

// unpack unpacks an archive into the staging directory. All is in the archive itself or in one folder of it.
func (i *installation) unpack(r io.Reader) (*bundle, error) {
	dir := filepath.Join(i.stage, "bundle")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	sum := sha256.New()
	r = io.TeeReader(r, sum)
	packed, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("it is not a .tar.gz: %w", err)
	}
	if err := extract(tar.NewReader(io.LimitReader(packed, maxUnpacked)), dir); err != nil {
		return nil, err
	}
	if i.SHA256 != "" {
		if _, err := io.Copy(io.Discard, io.LimitReader(r, maxUnpacked)); err != nil { // what follows the archive's end
			return nil, err
		}
		if err := i.checkSum(hex.EncodeToString(sum.Sum(nil))); err != nil {
			return nil, err
		}
		i.SHA256 = "" // it is not the binary's
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	if len(entries) == 1 && entries[0].IsDir() {
		dir = filepath.Join(dir, entries[0].Name())
	}
	return dirBundle(dir)
}

// extract writes the regular files of an archive. Links, devices and names that lead out of it are refused.
func extract(archive *tar.Reader, dir string) error {
	for n := 0; ; n++ {
		h, err := archive.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return damaged(err)
		case n >= maxEntries:
			return fmt.Errorf("the archive has more than %d entries", maxEntries)
		case h.Typeflag == tar.TypeDir:
			continue // made with its files
		case h.Typeflag == tar.TypeXGlobalHeader:
			continue
		case h.Typeflag != tar.TypeReg:
			return fmt.Errorf("the archive has %q, which is neither a file nor a folder", h.Name)
		case !filepath.IsLocal(h.Name):
			return fmt.Errorf("the archive has %q, which leads out of it", h.Name)
		}
		if err := write(filepath.Join(dir, h.Name), archive); err != nil {
			return fmt.Errorf("unpack %s: %w", h.Name, err)
		}
	}
}

func damaged(err error) error {
	return fmt.Errorf("the archive is damaged, or larger than %d bytes: %w", maxUnpacked, err)
}

func write(path string, r io.Reader) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err = io.Copy(f, r); errors.Is(err, io.ErrUnexpectedEOF) {
		return damaged(err)
	}
	return err
}
