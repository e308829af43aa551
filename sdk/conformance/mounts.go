package conformance

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// mountsAt returns the mounts at a path, the uppermost last.
func mountsAt(path string) ([]*mountinfo.Info, error) {
	infos, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.Mountpoint != path, false })
	if err != nil {
		return nil, fmt.Errorf("read the mounts: %w", err)
	}
	return infos, nil
}

// once returns the mount at a path, and fails unless there is exactly one.
func once(path string) (*mountinfo.Info, error) {
	infos, err := mountsAt(path)
	switch {
	case err != nil:
		return nil, err
	case len(infos) == 0:
		return nil, fmt.Errorf("nothing is mounted at the %s path", filepath.Base(path))
	case len(infos) > 1:
		return nil, fmt.Errorf("%d mounts are stacked at the %s path", len(infos), filepath.Base(path))
	}
	return infos[0], nil
}

// none fails if something is mounted at a path.
func none(path string) error {
	infos, err := mountsAt(path)
	if err == nil && len(infos) > 0 {
		err = fmt.Errorf("the %s path is still mounted", filepath.Base(path))
	}
	return err
}

// mountsBelow returns the mount points below a directory.
func mountsBelow(dir string) ([]string, error) {
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, fmt.Errorf("read the mounts: %w", err)
	}
	var points []string
	for _, m := range infos {
		points = append(points, m.Mountpoint)
	}
	return points, nil
}

// leave reports something that the plugin has left behind.
func (r *run) leave(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Left = append(r.report.Left, fmt.Sprintf(format, args...))
}

// unmountBelow unmounts and reports what a plugin has left mounted in a directory of the kit. That deletes nothing: the
// data stays in the volume.
func (r *run) unmountBelow(dir string) {
	points, err := mountsBelow(dir)
	if err != nil {
		r.leave("%v", err)
	}
	for _, point := range slices.Backward(points) {
		if err := unix.Unmount(point, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH); err != nil {
			r.leave("mount %s, and it could not be unmounted: %v", point, err)
			continue
		}
		r.leave("mount %s", point)
	}
}

// file is the name of the kit's file in a volume.
const file = "pannier-conformance"

// fresh returns random content for a file.
func fresh() []byte {
	content := make([]byte, 64<<10)
	_, _ = rand.Read(content) // never fails
	return content
}

// write writes the kit's file through a target, to the disk.
func (v *volume) write(target string, content []byte) error {
	if err := writeFile(filepath.Join(v.target(target), file), content); err != nil {
		return fmt.Errorf("write to the published volume: %w", err)
	}
	return nil
}

func writeFile(path string, content []byte) error {
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

// has checks that the kit's file has the content. when says what happened since it was written.
func (v *volume) has(target string, content []byte, when string) error {
	got, err := os.ReadFile(filepath.Join(v.target(target), file))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: the file that was written is not there", when)
	case err != nil:
		return fmt.Errorf("%s: %w", when, err)
	case !bytes.Equal(got, content):
		return fmt.Errorf("%s: the file has another content than was written", when)
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
