package secretsdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/system/mountuse"
	"github.com/pannier/pannier/internal/trusted"
)

const (
	// source is the source of our tmpfs in the mount table.
	source = "pannier-secrets"
	// mark is the file that marks the directory as ours.
	mark = ".pannier-secrets"
	// size bounds our tmpfs. It is enough for the directories of some thousand workloads.
	size = "64m"
	// workloadSize and workloadFiles bound what a workload's user can take of the memory, in the workload's own tmpfs.
	workloadSize, workloadFiles = "1m", "1k"
	// workloadLevel is the part of a place that has that tmpfs.
	workloadLevel = 1
)

// bound mounts a tmpfs on a workload's directory that was just made, and returns the directory in it. One that has
// files without a tmpfs, of an earlier version, keeps them.
func bound(in int, name string, dir int) (int, error) {
	var above, below unix.Stat_t
	path := fmt.Sprintf("/proc/self/fd/%d", dir)
	entries, err := os.ReadDir(path)
	if err = errors.Join(err, unix.Fstat(in, &above), unix.Fstat(dir, &below)); err == nil &&
		(above.Dev != below.Dev || len(entries) > 0 || os.Geteuid() != 0) {
		return dir, nil
	}
	if err == nil {
		err = unix.Mount(source, path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC,
			"mode=0711,size="+workloadSize+",nr_inodes="+workloadFiles)
	}
	_ = unix.Close(dir) // no data can be lost
	if err != nil {
		return 0, fmt.Errorf("mount a tmpfs there: %w", err)
	}
	return unix.Openat(in, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// removeEmpty removes a directory that is empty, and a workload's tmpfs on it.
func (d *Dir) removeEmpty(root *os.Root, parts []string) error {
	name := filepath.Join(parts...)
	err := root.Remove(name)
	if len(parts) != workloadLevel+1 || !errors.Is(err, unix.EBUSY) {
		return err
	}
	if entries, err := fs.ReadDir(root.FS(), name); err != nil || len(entries) > 0 {
		return errors.Join(err, unix.ENOTEMPTY)
	}
	// A process that has a file open there keeps only that file's memory.
	if err := unix.Unmount(filepath.Join(d.path, name), unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", name, err)
	}
	return root.Remove(name)
}

// Mount makes the directory and mounts a tmpfs there unless it is on one already. Write does this too; calling
// Mount earlier reports faults earlier. A directory with other content is refused, because unknown files in it
// would be removed.
func (d *Dir) Mount() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mount()
}

func (d *Dir) mount() error {
	if err := trusted.MkdirAll(d.path, 0o711); err != nil {
		return fmt.Errorf("%w: make the secrets directory: %w", ErrForeign, err)
	}
	if err := d.own(); err != nil {
		return fmt.Errorf("secrets directory %s: %w", d.path, err)
	}
	return nil
}

func (d *Dir) own() error {
	ours, err := d.marked()
	if err != nil {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(d.path, &st); err != nil {
		return fmt.Errorf("see what file system it is on: %w", err)
	}
	inMemory := st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC
	if inMemory && ours {
		return d.private()
	}
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return err
	}
	if len(entries) > 0 && !ours {
		return fmt.Errorf("%w: it holds %q: set secrets_dir to an empty directory", ErrForeign, entries[0].Name())
	}
	if !inMemory {
		if err := unix.Mount(source, d.path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC,
			"mode=0711,size="+size); err != nil {
			return fmt.Errorf(
				"it is on a disk, and a tmpfs cannot be mounted there: %w: run the agent as root, or set secrets_dir to a directory on a tmpfs, such as one below /run", err)
		}
	}
	if err := os.Chmod(d.path, 0o711); err != nil { // the umask may have removed some bits
		return err
	}
	file, err := os.OpenFile(filepath.Join(d.path, mark), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o400)
	if err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	return d.private()
}

// private fails if another user can write in the directory.
func (d *Dir) private() error {
	if err := trusted.Dir(d.path); err != nil {
		return fmt.Errorf("%w: %w", ErrForeign, err)
	}
	return nil
}

func (d *Dir) marked() (bool, error) {
	_, err := os.Lstat(filepath.Join(d.path, mark))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Close unmounts the tmpfs that was mounted here, by this process or an earlier one, if it is empty. It may be
// called more than once.
func (d *Dir) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	path, err := filepath.EvalSymlinks(d.path) // as in the mount table
	if err != nil {
		return ignore(err, fs.ErrNotExist)
	}
	table, err := mountuse.Read(mountuse.Self)
	if there := mountuse.At(table, path); err != nil || there == nil || there.Source != source {
		return err
	}
	entries, err := os.ReadDir(path)
	if err != nil || len(entries) != 1 || entries[0].Name() != mark {
		return err
	}
	err = unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) {
		return nil // somebody has it open: the next host unmounts it
	}
	return err
}
