package conformance

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// file is the name of the kit's file in a volume.
const file = "pannier-conformance"

// fresh returns random content for a file.
func fresh() []byte {
	content := make([]byte, 64<<10)
	_, _ = rand.Read(content) // never fails
	return content
}

// write writes the kit's file through a target, to the disk, and makes the tree if there is none.
func (v *volume) write(target string, content []byte) error {
	var err error
	if v.tree == nil {
		v.tree, err = makeTree(filepath.Join(v.target(target), file+"-tree"))
	}
	if err == nil {
		err = writeFile(filepath.Join(v.target(target), file), content)
	}
	if err != nil {
		return fmt.Errorf("write to the published volume: %w", err)
	}
	return nil
}

// makeTree makes a folder with everything that a workload may keep, and describes it. What the file system does not
// support, such as owners, is not in it.
func makeTree(dir string) ([]string, error) {
	for _, sub := range []string{"", "empty", "nested/deeply"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	for name, size := range map[string]int{"none": 0, "nested/deeply/große Datei": 1 << 20, "owned": 10} {
		if err := writeFile(filepath.Join(dir, name), make([]byte, size)); err != nil {
			return nil, err
		}
	}
	owned := filepath.Join(dir, "owned")
	_ = os.Chmod(owned, 0o751)
	_ = os.Chown(owned, 12345, 23456)
	_ = os.Symlink("../nowhere", filepath.Join(dir, "link"))
	return describeTree(dir)
}

// describeTree returns a line for each file of a folder.
func describeTree(dir string) ([]string, error) {
	var lines []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		var s unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &s)
		}
		if err != nil {
			return err
		}
		what := ""
		switch s.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			what, err = os.Readlink(path)
		case unix.S_IFREG:
			var content []byte
			content, err = os.ReadFile(path)
			what = fmt.Sprintf("%d bytes %x", len(content), digest(string(content)))
		}
		lines = append(lines, fmt.Sprintf("%q mode %o owner %d:%d %s", strings.TrimPrefix(path, dir), s.Mode, s.Uid, s.Gid,
			what))
		return err
	})
	return lines, err
}

// noFork keeps files of a volume from a child that is just being forked, and has them until its exec: the plugin could
// not unmount the volume then. It returns what ends that.
func noFork() func() {
	syscall.ForkLock.RLock()
	return syscall.ForkLock.RUnlock
}

func writeFile(path string, content []byte) error {
	defer noFork()()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(dir.Fd())), dir.Close())
}

// has checks that the kit's file has the content. when is what happened since it was written.
func (v *volume) has(target string, content []byte, when string) error {
	defer noFork()()
	got, err := os.ReadFile(filepath.Join(v.target(target), file))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: the file that was written is not there", when)
	case err != nil:
		return fmt.Errorf("%s: %w", when, err)
	case !bytes.Equal(got, content):
		return fmt.Errorf("%s: the file has another content than was written", when)
	case v.tree == nil:
		return nil
	}
	tree, err := describeTree(filepath.Join(v.target(target), file+"-tree"))
	if err != nil {
		return fmt.Errorf("%s: %w", when, err)
	}
	for n, line := range v.tree {
		if n >= len(tree) || tree[n] != line {
			return fmt.Errorf("%s: the files were %s, and are %.300q", when, line, tree[min(n, len(tree)):])
		}
	}
	return nil
}

// lacks checks that the kit's file does not exist.
func (v *volume) lacks(target, what string) error {
	_, err := os.Lstat(filepath.Join(v.target(target), file))
	switch {
	case err == nil:
		return errors.New(what)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return err
}

// refusesWrites tries to change a published file system that has the kit's file.
func refusesWrites(dir string) error {
	own := filepath.Join(dir, file)
	for what, change := range map[string]func() error{
		"a file is written": func() error {
			f, err := os.OpenFile(own, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteString("x")
			return errors.Join(err, f.Sync(), f.Close())
		},
		"a file is made":      func() error { return writeFile(own+"-new", nil) },
		"a directory is made": func() error { return os.Mkdir(own+"-dir", 0o700) },
		"a mode is changed":   func() error { return os.Chmod(own, 0o640) },
		"a file is renamed":   func() error { return os.Rename(own, own+"-renamed") },
	} {
		if change() == nil {
			return errors.New("through a read-only target " + what)
		}
	}
	return nil
}
