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

// temporary begins the name of a file that is being written.
const temporary = ".writing-"

// folder is an open folder of a service.
type folder struct{ fd int }

func (f folder) close() { _ = unix.Close(f.fd) } // nothing is written through it

// enter opens the folder of a place, each one in the one above, no link among them.
// Where uid is given they are made, and the last one is that user's.
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
		_ = unix.Close(fd) // nothing was written through it
		if err != nil {
			return folder{}, fmt.Errorf("folder %q: %w", name, err)
		}
		fd = next
	}
	return folder{fd}, nil
}

// open opens a folder, and makes it before where it is to: of that owner, with that
// mode whatever the umask is.
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
		return 0, fmt.Errorf("%w: a link or a file, not a folder", ErrForeign)
	}
	if err != nil || !made {
		return fd, err
	}
	if err = adopt(fd, fresh, owner, mode); err != nil {
		_ = unix.Close(fd) // as it was opened
		return 0, err
	}
	return fd, nil
}

// adopt gives a folder that was just made its owner. One that was there before, or was
// made by a host that was killed in between, must be the owner's or the host's.
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

// replace writes a file beside the one of its name and renames it.
func (f folder) replace(name string, data []byte, uid int) (err error) {
	other := temporary + rand.Text()
	fd, err := unix.Openat(f.fd, other, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o400)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), other)
	defer func() {
		if err != nil {
			_ = unix.Unlinkat(f.fd, other, 0) // it may be renamed already
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
	// The folder is the user's: what was renamed may be another file of its own.
	var written, there unix.Stat_t
	if err := errors.Join(unix.Fstat(fd, &written), unix.Fstatat(f.fd, name, &there, unix.AT_SYMLINK_NOFOLLOW)); err != nil {
		return err
	}
	if written.Ino != there.Ino || written.Dev != there.Dev {
		return fmt.Errorf("%w: its user has put another file there", ErrForeign)
	}
	return nil
}

// read reads what is a regular file of the user, and of nobody else.
func (f folder) read(name string, uid int) ([]byte, error) {
	// O_NONBLOCK: a pipe in its place must not hold the host.
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
		return nil, fmt.Errorf("%w: it is no regular file", ErrForeign)
	case int(st.Uid) != uid:
		return nil, fmt.Errorf("%w: it belongs to uid %d, not to %d", ErrForeign, st.Uid, uid)
	case st.Mode&0o077 != 0:
		return nil, fmt.Errorf("%w: its mode is %#o, others may read it", ErrForeign, st.Mode&0o7777)
	case st.Nlink != 1:
		return nil, fmt.Errorf("%w: it has %d names", ErrForeign, st.Nlink)
	case st.Size > maxFile:
		return nil, fmt.Errorf("%w: it has %d bytes", ErrForeign, st.Size)
	}
	return io.ReadAll(io.LimitReader(file, maxFile))
}

// remove removes one name; what has one in it goes with it.
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
