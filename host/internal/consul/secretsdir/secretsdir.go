// Package secretsdir keeps the files with the secrets of workloads' services:
//
//	<dir>/<namespace>/<workload>/<service>/si_token
//
// Invariants:
//
//   - The files are on a tmpfs, never on a disk. If the directory is not on a tmpfs, one is mounted there. A workload's
//     directory has a small one of its own, so that its user cannot fill that of the others.
//   - A file has mode 0400 and a service's directory 0700; both belong to the workload's user. The directories
//     above have mode 0711 and belong to the agent.
//   - A file is complete or absent: it is written under another name in its directory and then renamed.
//   - No link below the directory is followed. Whatever a workload's user puts there harms only that user.
//   - Only what is in a directory with this package's mark is ever removed.
package secretsdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/diskspace"
)

// ErrForeign means that something else is in the place of what was written: a link, a directory, or a file of another
// user.
var ErrForeign = errors.New("it is not the host's")

// ErrFull means that the tmpfs has no room left. Nothing was changed.
var ErrFull = errors.New("the secrets directory is full")

// maxFile bounds the size of a file that is read, in bytes.
const maxFile = 4 << 20

// Place is the directory of one service of a workload.
type Place struct{ Namespace, Workload, Service string }

func (p Place) parts() []string { return []string{p.Namespace, p.Workload, p.Service} }

// check refuses names that would lead outside the directory.
func (p Place) check(file string) error {
	for _, name := range append(p.parts(), file) {
		if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
			return fmt.Errorf("%q cannot be the name of a file or directory for secrets", name)
		}
	}
	return nil
}

// Dir is the directory of all workloads' secrets on this node. It is safe for concurrent use.
type Dir struct {
	path string
	mu   sync.Mutex // one change at a time, because empty parents are removed
}

// New returns the Dir at path. It makes nothing before it is needed.
func New(path string) *Dir { return &Dir{path: path} }

// Path returns the path of a file.
func (d *Dir) Path(p Place, file string) string { return filepath.Join(d.Folder(p), file) }

// Folder returns the service's directory.
func (d *Dir) Folder(p Place) string { return filepath.Join(d.Workload(p), p.Service) }

// Workload returns the directory of all services of the place's workload.
func (d *Dir) Workload(p Place) string { return filepath.Join(d.path, p.Namespace, p.Workload) }

// Write writes a file for a user, with mode 0400, replacing one of the same name. On an error the old file stays.
// ErrFull: there is no room.
func (d *Dir) Write(p Place, file string, data []byte, uid int) error {
	if err := p.check(file); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.mount()
	if err == nil {
		err = d.write(p, file, data, uid)
	}
	switch {
	case err == nil:
		return nil
	case diskspace.IsFull(err):
		return fmt.Errorf("write %s: %w: remove what the workload has written below %s, where it has %s: %w",
			d.Path(p, file), ErrFull, d.Workload(p), workloadSize, err)
	default:
		return fmt.Errorf("write %s: %w", d.Path(p, file), err)
	}
}

func (d *Dir) write(p Place, file string, data []byte, uid int) error {
	folder, err := d.enter(p, &uid)
	if err != nil {
		return err
	}
	defer folder.close()
	return folder.replace(file, data, uid)
}

// Read reads a file of a user. fs.ErrNotExist: there is none; ErrForeign: it is a link, belongs to another user,
// or can be read by others.
func (d *Dir) Read(p Place, file string, uid int) ([]byte, error) {
	if err := p.check(file); err != nil {
		return nil, err
	}
	folder, err := d.enter(p, nil)
	if err == nil {
		defer folder.close()
		var data []byte
		if data, err = folder.read(file, uid); err == nil {
			return data, nil
		}
	}
	return nil, fmt.Errorf("read %s: %w", d.Path(p, file), err)
}

// RemoveFile removes one file of any type. It succeeds if there is none.
func (d *Dir) RemoveFile(p Place, file string) error {
	if err := p.check(file); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	folder, err := d.enter(p, nil)
	if err == nil {
		defer folder.close()
		err = folder.remove(file)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", d.Path(p, file), err)
	}
	return nil
}

// Remove removes a service's directory with its content, and the directories above it that are then empty. It
// succeeds if there is none.
func (d *Dir) Remove(p Place) error {
	if err := p.check("x"); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.within(func(root *os.Root) error { return d.remove(root, p.parts()) })
}

// Sweep removes everything that is not in a place to be kept, and within those the temporary files of interrupted
// writes. It returns what it removed.
func (d *Dir) Sweep(keep func(p Place) bool) (removed []string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	err = d.within(func(root *os.Root) error {
		if _, err := root.Lstat(mark); err != nil {
			return ignore(err, fs.ErrNotExist) // never used
		}
		s := sweep{dir: d, root: root, keep: keep}
		err := s.folder(nil)
		for _, path := range s.removed {
			removed = append(removed, filepath.Join(d.path, path))
		}
		return err
	})
	return removed, err
}

// within opens the directory for removals, and succeeds if there is none. No name in fn leads outside it, and
// links are removed, not followed.
func (d *Dir) within(fn func(root *os.Root) error) error {
	root, err := os.OpenRoot(d.path)
	if err != nil {
		return ignore(err, fs.ErrNotExist)
	}
	defer root.Close()
	return fn(root)
}

// remove removes a directory and its empty parents.
func (d *Dir) remove(root *os.Root, parts []string) error {
	if err := root.RemoveAll(filepath.Join(parts...)); err != nil {
		return err
	}
	for n := len(parts) - 1; n > 0; n-- {
		err := d.removeEmpty(root, parts[:n])
		if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
			return nil
		}
		if err := ignore(err, fs.ErrNotExist); err != nil {
			return err
		}
	}
	return nil
}

// sweep is one pass of Sweep.
type sweep struct {
	dir     *Dir
	root    *os.Root
	keep    func(p Place) bool
	removed []string
}

// folder sweeps a directory that stays.
func (s *sweep) folder(parts []string) error {
	entries, err := fs.ReadDir(s.root.FS(), filepath.Join(append([]string{"."}, parts...)...))
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := slices.Concat(parts, []string{e.Name()})
		switch {
		case len(path) == 1 && e.Name() == mark:
		case len(path) <= 3 && e.IsDir() && (len(path) < 3 || s.keep(Place{path[0], path[1], path[2]})):
			if err := s.folder(path); err != nil {
				return err
			}
			if len(path) < 3 {
				_ = s.dir.removeEmpty(s.root, path) // succeeds only if it is empty now
			}
		case len(path) == 4 && !strings.HasPrefix(e.Name(), temporary):
		default:
			if err := s.root.RemoveAll(filepath.Join(path...)); err != nil {
				return err
			}
			s.removed = append(s.removed, filepath.Join(path...))
		}
	}
	return nil
}

func ignore(err, what error) error {
	if errors.Is(err, what) {
		return nil
	}
	return err
}
