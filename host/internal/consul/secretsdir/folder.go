package secretsdir

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// temporary is the prefix of files that are being written.
const temporary = ".writing-"

// folder is an open directory of a service.
type folder struct{ fd int }

func (f folder) close() { _ = unix.Close(f.fd) } // only closes a directory: no data can be lost

// enter opens the directory of a place, each level relative to the one above, without following links. If uid is
// given, it makes missing directories, and the last one belongs to that user.
func (d *Dir) enter(p Place, uid *int) (folder, error) {
	fd, err := unix.Open(d.path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return folder{}, &fs.PathError{Op: "open", Path: d.path, Err: err}
	}
	for n, name := range p.parts() {
		owner, mode := os.Geteuid(), uint32(0o711)
		last := n == len(p.parts())-1
		if last && uid != nil {
			owner, mode = *uid, 0o700
		}
		next, err := open(fd, name, uid != nil, owner, mode)
		if err == nil && uid != nil && n == workloadLevel {
			next, err = bound(fd, name, next)
		}
		_ = unix.Close(fd) // no data can be lost
		if err != nil {
			return folder{}, fmt.Errorf("folder %q: %w", name, err)
		}
		fd = next
	}
	return folder{fd}, nil
}

// open opens a directory. If it is to be made, it gets that owner and mode, whatever the umask is.
func open(in int, name string, made bool, owner int, mode uint32) (int, error) {
	fresh := false
	if made {
		err := unix.Mkdirat(in, name, 0o700)
		if fresh = err == nil; !fresh && !errors.Is(err, unix.EEXIST) {
			return 0, err
		}
	}
	fd, err := unix.Openat(in, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return 0, fmt.Errorf("%w: a link or a file, not a directory", ErrForeign)
	}
	if err != nil || !made {
		return fd, err
	}
	if err = adopt(fd, fresh, owner, mode); err != nil {
		_ = unix.Close(fd) // it was only opened
		return 0, err
	}
	return fd, nil
}

// adopt sets the owner of a directory that was just made. A directory that existed before, perhaps made by a host
// that was killed meanwhile, must belong to the owner or the host.
func adopt(fd int, fresh bool, owner int, mode uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if int(st.Uid) == owner && st.Mode&0o7777 == mode {
		return nil
	}
	if !fresh && int(st.Uid) != owner && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%w: it belongs to uid %d, not to %d", ErrForeign, st.Uid, owner)
	}
	if err := unix.Fchown(fd, owner, -1); err != nil {
		return fmt.Errorf("give it to uid %d: %w", owner, err)
	}
	return unix.Fchmod(fd, mode)
}

// replace writes a temporary file beside the named one and renames it.
func (f folder) replace(name string, data []byte, uid int) (err error) {
	other := temporary + rand.Text()
	fd, err := unix.Openat(f.fd, other, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o400)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), other)
	defer func() {
		if err != nil {
			_ = unix.Unlinkat(f.fd, other, 0) // fails if it was renamed already
		}
		err = errors.Join(err, file.Close())
	}()
	if _, err := file.Write(data); err != nil {
		return err
	}
	if err := file.Chown(uid, -1); err != nil {
		return fmt.Errorf("give it to uid %d: %w", uid, err)
	}
	if err := unix.Renameat(f.fd, other, f.fd, name); err != nil {
		return err
	}
	// The directory belongs to the user, who may have replaced the temporary file.
	var written, there unix.Stat_t
	if err := errors.Join(unix.Fstat(fd, &written),
		unix.Fstatat(f.fd, name, &there, unix.AT_SYMLINK_NOFOLLOW)); err != nil {
		return err
	}
	if written.Ino != there.Ino || written.Dev != there.Dev {
		return fmt.Errorf("%w: its user has put another file there", ErrForeign)
	}
	return nil
}

// read reads a regular file that belongs to the user and that nobody else can read.
func (f folder) read(name string, uid int) ([]byte, error) {
	// O_NONBLOCK: if the user puts a pipe there, opening it must not block the host.
	fd, err := unix.Openat(f.fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%w: it is a link", ErrForeign)
	}
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("%w: it is not a regular file", ErrForeign)
	case int(st.Uid) != uid:
		return nil, fmt.Errorf("%w: it belongs to uid %d, not to %d", ErrForeign, st.Uid, uid)
	case st.Mode&0o077 != 0:
		return nil, fmt.Errorf("%w: its mode is %#o, others may read it", ErrForeign, st.Mode&0o7777)
	case st.Nlink != 1:
		return nil, fmt.Errorf("%w: it has %d hard links", ErrForeign, st.Nlink)
	case st.Size > maxFile:
		return nil, fmt.Errorf("%w: it has %d bytes", ErrForeign, st.Size)
	}
	return io.ReadAll(io.LimitReader(file, maxFile))
}

// remove removes a name, recursively if it is a directory.
func (f folder) remove(name string) error {
	err := unix.Unlinkat(f.fd, name, 0)
	if errors.Is(err, unix.EISDIR) {
		root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", f.fd))
		if err != nil {
			return err
		}
		defer root.Close()
		return root.RemoveAll(name)
	}
	return err
}
