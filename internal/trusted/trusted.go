// Package trusted reports whether a path can be changed by others than those who already rule the host: root, the
// agent's own user, and the user who became root by sudo to start it. Whoever else could change a plugin, a driver's
// program or the configuration, or put another file in its place, could run code as the agent. Nor must root make,
// mount or remove anything by a name that somebody else can give to something else meanwhile.
//
// What must stay true: every component of the path, and of what symbolic links on the way lead to, belongs to one of
// these users, and no other user can write to it. In a sticky directory, such as /tmp, only the owner of an entry can
// replace the entry (chmod(1)), so a path may pass through it. Since nobody else can change what was checked, the path
// may be opened afterwards by its name.
package trusted

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// maxLinks is how many symbolic links a path may have, as in the kernel (path_resolution(7)).
const maxLinks = 40

// Error names what is wrong with a path, such as who else could change it, and what to do.
type Error struct {
	// Path was to be checked, At is the component of it with which something is wrong.
	Path, At string
	// Why is what is wrong, and Command mends it.
	Why, Command string
}

func (e *Error) Error() string {
	if e.At == e.Path {
		return fmt.Sprintf("%s %s: run %s", e.At, e.Why, e.Command)
	}
	return fmt.Sprintf("%s %s, who could so replace %s: run %s, or move it to where only root can write in all parents",
		e.At, e.Why, e.Path, e.Command)
}

// File returns an *Error if others could change a file or put another in its place, and an error of the file system if
// it cannot be looked at, such as fs.ErrNotExist. It follows symbolic links. path must be absolute.
func File(path string) error { return check(path, false) }

// Dir is File for a directory whose entries are all used: others may not add any, sticky or not.
func Dir(path string) error { return check(path, true) }

// MkdirAll is os.MkdirAll where others could not change the path. It makes nothing elsewhere, and returns the error of
// File. A directory that exists at path may be sticky: see Dir.
func MkdirAll(path string, mode fs.FileMode) error {
	err := File(path)
	if !errors.Is(err, fs.ErrNotExist) || path == filepath.Dir(path) {
		return err
	}
	if err := MkdirAll(filepath.Dir(path), mode); err != nil {
		return err
	}
	if err := os.Mkdir(path, mode); err != nil && !errors.Is(err, fs.ErrExist) { // it follows no link
		return err
	}
	return File(path) // in a sticky directory another user may have been faster
}

// Permit gives what was made at a path a mode (0: it stays), an owner and a group (-1: they stay). It is an error if
// the path is not of that type any more, or has another name: a user who can replace it, as the owner of an entry in a
// sticky directory, would get the rights to another file by a link.
func Permit(path string, kind, mode fs.FileMode, uid, gid int) error {
	const byDescriptor = 0x200000 // O_PATH (open(2)), which the standard library has not
	f, err := os.OpenFile(path, byDescriptor|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode().Type() != kind || kind != fs.ModeDir && st.Nlink != 1 {
		return fmt.Errorf("%s was replaced by another user: it is %s with %d names", path, info.Mode(), st.Nlink)
	}
	at := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	if mode != 0 {
		err = os.Chmod(at, mode)
	}
	return errors.Join(err, os.Chown(at, uid, gid))
}

func check(path string, entries bool) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%q is not an absolute path", path)
	}
	path = filepath.Clean(path)
	at, rest := "/", split(path)
	for links := 0; ; {
		info, err := os.Lstat(at)
		if err != nil {
			return err
		}
		kind := info.Mode().Type()
		passed := kind == fs.ModeDir && (len(rest) > 0 || !entries)
		if err := checkInfo(path, at, info, passed && info.Mode()&fs.ModeSticky != 0); err != nil {
			return err
		}
		if kind == fs.ModeSymlink {
			if links++; links > maxLinks {
				return &fs.PathError{Op: "open", Path: path, Err: syscall.ELOOP}
			}
			to, err := os.Readlink(at)
			if err != nil {
				return err
			}
			at, rest = filepath.Dir(at), append(split(to), rest...)
			if filepath.IsAbs(to) {
				at = "/"
			}
			continue
		}
		if len(rest) == 0 {
			return nil
		}
		// at has no link in it, so the parent of .. is the directory above.
		at, rest = filepath.Join(at, rest[0]), rest[1:]
	}
}

func split(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(name string) bool { return name == "" || name == "." })
}

// checkInfo checks one component of path. sticky: others may write to it, since they cannot replace entries.
func checkInfo(path, at string, info fs.FileInfo, sticky bool) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("this system does not say who owns a file")
	}
	mode := info.Mode()
	switch {
	case !slices.Contains(owners(), int(st.Uid)):
		return &Error{path, at, fmt.Sprintf("belongs to user %d", st.Uid), "chown -h root " + at}
	case mode.Type() != fs.ModeSymlink && mode.Perm()&0o022 != 0 && !sticky:
		return &Error{
			path, at, fmt.Sprintf("can be written by its group or by everyone (mode %04o)", mode.Perm()), "chmod go-w " + at,
		}
	}
	return nil
}

// owners returns the users who rule this host anyway.
func owners() []int {
	all := []int{0, os.Geteuid()}
	// The environment is from whoever started the agent as root.
	if uid, err := strconv.Atoi(os.Getenv("SUDO_UID")); err == nil && os.Geteuid() == 0 {
		all = append(all, uid)
	}
	return all
}
