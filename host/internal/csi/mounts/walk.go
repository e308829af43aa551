package mounts

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// chain is the way from a driver's folder to a path below it, each directory opened
// in the one above: no link can lead out of it, whoever changes what meanwhile.
type chain struct {
	names []string // of what lies below dirs[0]
	dirs  []int    // dirs[i] holds names[i]
}

// walk opens the directories from dir to the parent of rel. Where one is not there,
// made says whether to make it (0700); otherwise the chain ends before it, shorter
// than rel. What is no directory is an error.
func walk(dir, rel string, made bool) (*chain, error) {
	top, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	c := &chain{names: strings.Split(rel, string(filepath.Separator)), dirs: []int{top}}
	for i, name := range c.names[:len(c.names)-1] {
		next, err := enter(top, name, made)
		if errors.Is(err, unix.ENOENT) && !made {
			c.names = c.names[:i+1]
			return c, nil
		}
		if err != nil {
			c.close()
			return nil, fmt.Errorf("%s: %w", filepath.Join(dir, filepath.Join(c.names[:i+1]...)), err)
		}
		top = next
		c.dirs = append(c.dirs, top)
	}
	return c, nil
}

// enter opens the directory name in another one, and makes it before where it is to.
func enter(in int, name string, made bool) (int, error) {
	if made {
		if err := unix.Mkdirat(in, name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
			return 0, err
		}
	}
	fd, err := unix.Openat(in, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOTDIR) {
		var st unix.Stat_t
		if unix.Fstatat(in, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
			return 0, fmt.Errorf("it is %s, not a directory", kind(st.Mode))
		}
	}
	return fd, err
}

// last holds name, which is the end of the chain.
func (c *chain) last() int    { return c.dirs[len(c.dirs)-1] }
func (c *chain) name() string { return c.names[len(c.names)-1] }

// up takes the end off the chain.
func (c *chain) up() {
	_ = unix.Close(c.last()) // nothing was written through it
	c.dirs, c.names = c.dirs[:len(c.dirs)-1], c.names[:len(c.names)-1]
}

func (c *chain) close() {
	for _, fd := range c.dirs {
		_ = unix.Close(fd) // nothing was written through it
	}
}
