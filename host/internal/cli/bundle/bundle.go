// Package bundle writes what pannier debug has collected into one archive, and keeps secrets out of it: a line of a log
// with one, or else the whole file, is left out and named.
package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/pannier/pannier/internal/atomicfile"
)

// ErrorsFile is the file that names what is missing, a line for each.
const ErrorsFile = "errors.txt"

// Bundle collects files. Its zero value is empty.
type Bundle struct {
	files   []*file
	missing []string
	secrets []secret
}

type file struct {
	name    string
	content bytes.Buffer
}

// File returns the content of a file for more to be written to. A file that stays empty is not in the archive.
func (b *Bundle) File(name string) *bytes.Buffer {
	for _, f := range b.files {
		if f.name == name {
			return &f.content
		}
	}
	f := &file{name: name}
	b.files = append(b.files, f)
	return &f.content
}

// Missing records why something could not be had. A nil error changes nothing.
func (b *Bundle) Missing(what string, err error) {
	if err != nil {
		b.missing = append(b.missing, fmt.Sprintf("%s: %v", what, err))
	}
}

// Summary is what became of a bundle.
type Summary struct {
	// Files is the number of files in the archive.
	Files int `json:"files"`
	// Missing is what is not in it, and why.
	Missing []string `json:"missing"`
}

// Write writes the archive, in which all files are in a folder. No file in it has a secret that the bundle knows.
func (b *Bundle) Write(w io.Writer, folder string) (Summary, error) {
	packed := gzip.NewWriter(w)
	archive := tar.NewWriter(packed)
	now, sum := time.Now(), Summary{Missing: []string{}}
	add := func(name string, content []byte) error {
		sum.Files++
		err := archive.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: filepath.Join(folder, name), Mode: 0o600, Size: int64(len(content)), ModTime: now,
		})
		if err == nil {
			_, err = archive.Write(content)
		}
		return err
	}
	for _, f := range b.files {
		if f.content.Len() == 0 {
			continue
		}
		content := f.content.Bytes()
		whose := b.Reveals(content)
		if whose != "" && slices.Contains([]string{".log", ".jsonl"}, filepath.Ext(f.name)) {
			var lines int
			content, lines = b.withoutLines(content)
			b.Missing(f.name, fmt.Errorf("lines are left out (%d), because they have a secret in them: %s", lines, whose))
			whose = b.Reveals(content) // it may be in several lines
		}
		if whose != "" {
			b.Missing(f.name, fmt.Errorf("it is left out, because it has a secret in it: %s", whose))
			continue
		}
		if err := add(f.name, content); err != nil {
			return sum, err
		}
	}
	for _, line := range b.missing {
		if whose := b.Reveals([]byte(line)); whose != "" {
			line = "the reason why something is missing is left out, because it has a secret in it: " + whose
		}
		sum.Missing = append(sum.Missing, line)
	}
	var lines bytes.Buffer
	for _, line := range sum.Missing {
		fmt.Fprintln(&lines, line)
	}
	if lines.Len() > 0 {
		if err := add(ErrorsFile, lines.Bytes()); err != nil {
			return sum, err
		}
	}
	return sum, errors.Join(archive.Close(), packed.Close())
}

// withoutLines returns a text without the lines that have a secret, and their number.
func (b *Bundle) withoutLines(text []byte) (rest []byte, lines int) {
	for line := range bytes.Lines(text) {
		if b.Reveals(line) != "" {
			lines++
			continue
		}
		rest = append(rest, line...)
	}
	return rest, lines
}

// WriteFile writes the archive to a new file that only its owner can read, complete or not at all. Its error is
// fs.ErrExist if the file exists.
func (b *Bundle) WriteFile(path, folder string) (sum Summary, err error) {
	err = atomicfile.Create(path, func(f *os.File) (err error) {
		sum, err = b.Write(f, folder)
		return err
	})
	return sum, err
}
