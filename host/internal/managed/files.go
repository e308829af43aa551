package managed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/system/program"
	"github.com/pannier/pannier/internal/trusted"
)

// File is a program that may have to run.
type File struct {
	Path string
	// Check returns why the file, which has that checksum, must not run now. nil: nothing is checked.
	Check func(sha string) error
}

// Source is what a process is started from.
type Source struct {
	SHA256  string // as far as it is known
	Path    string // the file that is copied; empty: the copy is kept already
	InPlace bool   // it is not copied
}

// hashed is the checksum of a file as it was when last read.
type hashed struct {
	program.Stamp
	SHA256 string
}

// Candidate returns what should run, and what is wrong with the files: the copy that an operator has pinned, else the
// first of the files that can be run and was not refused, else the copy that served last, or the one before it. A file
// that cannot be run now does not let the files after it replace the copy that served.
func (s *Set) Candidate(files []File) (src Source, problems []error, err error) {
	kept := s.Kept()
	var refused *Source
	for _, f := range files {
		sha, err := s.Sum(f.Path)
		if err == nil && f.Check != nil {
			err = f.Check(sha)
		}
		if err != nil {
			problems = append(problems, err)
			if kept != nil {
				break
			}
			continue
		}
		src := Source{SHA256: sha, Path: f.Path}
		if _, no := s.Record.Refused[sha]; !no && s.Record.Pinned == "" {
			return src, problems, nil
		}
		if refused == nil {
			refused = &src
		}
	}
	switch {
	case s.Record.Pinned != "":
		return Source{SHA256: s.Record.Pinned}, problems, nil
	case kept != nil:
		return *kept, problems, nil
	case refused != nil:
		return *refused, problems, nil // better to try it again than to run nothing
	default:
		return Source{}, problems, errors.Join(problems...)
	}
}

// Kept returns the copy that served last, or the one before it; nil if there is none that was not refused.
func (s *Set) Kept() *Source {
	for _, sha := range []string{s.Record.Served, s.Record.LastGood} {
		if _, no := s.Record.Refused[sha]; !no && s.Store.Has(sha, s.Name) {
			return &Source{SHA256: sha}
		}
	}
	return nil
}

// CanGoBack reports whether there is an earlier copy that was not refused.
func (s *Set) CanGoBack() bool {
	_, refused := s.Record.Refused[s.Record.LastGood]
	return !refused && s.Store.Has(s.Record.LastGood, s.Name)
}

// Sum returns the checksum of a file that can be run. It reads the file only if it has changed. It decides which
// file is copied; what runs is hashed when it is copied.
func (s *Set) Sum(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("open the program: %w", err)
	}
	if info.Mode()&0o111 == 0 {
		return "", &trusted.Error{Path: path, At: path, Why: "is not executable", Command: "chmod a+x " + path}
	}
	now := hashed{Stamp: program.StampOf(info)}
	was, ok := s.sums[path]
	if now.SHA256 = was.SHA256; ok && now == was {
		return was.SHA256, nil
	}
	if now.SHA256, err = read(path); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	s.sums[path] = now
	return now.SHA256, nil
}

// Known returns the checksum of a file that was read before.
func (s *Set) Known(path string) (sha string, ok bool) {
	known, ok := s.sums[path]
	return known.SHA256, ok
}

// read returns the checksum of a program that is complete.
func read(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // without waiting for anything
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", errors.Join(err, errors.New("it is not a regular file"))
	}
	if err := program.CheckWhole(f); err != nil {
		return "", err
	}
	return program.SumOf(f)
}

// IsGone reports whether a file was removed after its directory had been read. A link that leads nowhere is still
// there.
func IsGone(err error) bool {
	failed := (*fs.PathError)(nil)
	if !errors.As(err, &failed) {
		return false
	}
	_, err = os.Lstat(failed.Path)
	return errors.Is(err, fs.ErrNotExist)
}
