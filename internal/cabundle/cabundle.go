// Package cabundle reads the certificates of authorities, which are in one file or in all files of a directory.
package cabundle

import (
	"bytes"
	"os"
	"path/filepath"
)

// Files are the path itself, or the files in it in the order of their names if it is a directory. Folders in it are
// left out.
func Files(path string) (all []string, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		file := filepath.Join(path, e.Name())
		info, err := os.Stat(file) // of what a link points to
		if err != nil {
			return nil, err
		}
		if info.Mode().IsRegular() {
			all = append(all, file)
		}
	}
	return all, nil
}

// Read returns the content of all files, each with a final newline.
func Read(path string) ([]byte, error) {
	files, err := Files(path)
	if err != nil {
		return nil, err
	}
	var all bytes.Buffer
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		all.Write(text)
		if !bytes.HasSuffix(text, []byte("\n")) {
			all.WriteByte('\n')
		}
	}
	return all.Bytes(), nil
}
