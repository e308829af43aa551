package mountuse

import (
	"os"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Own returns the mounts that this process sees, in the order of mounting, as Read(Self) does. It reads the table only
// if something was mounted, moved or unmounted since it was read last, or got other flags. Changes of propagation
// alone (Optional) are not reported by the kernel, so these may be older. The table is shared: do not change it.
func Own() ([]*mountinfo.Info, error) { return ownShared.get() }

var ownShared = shared[[]*mountinfo.Info]{read: new(ownTable).read}

// ownTable is the mount table of this process as it was read last. The process must stay in its mount namespace.
type ownTable struct {
	file  int               // an open mount table, which the kernel notes changes in; 0: it is not open yet
	table []*mountinfo.Info // nil: it was not read yet, or reading it failed
}

func (o *ownTable) read() ([]*mountinfo.Info, error) {
	if o.file == 0 {
		file, err := unix.Open(Self+"/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: Self + "/mountinfo", Err: err}
		}
		o.file = file
	}
	// The kernel reports each change once: it must be asked before the table is read.
	if !o.changed() && o.table != nil {
		return o.table, nil
	}
	var err error
	o.table, err = Read(Self)
	return o.table, err
}

// changed reports whether the table has changed since the last call (proc_pid_mountinfo(5)), or may have.
func (o *ownTable) changed() bool {
	fds := []unix.PollFd{{Fd: int32(o.file), Events: unix.POLLPRI}}
	n, err := unix.Poll(fds, 0)
	return err != nil || n > 0
}
