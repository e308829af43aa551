package workload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/system/process"
)

// namespace names the private mount namespace of a workload's process.
//
// The kernel reuses the inode number of a namespace that is gone. So the number is proof only while
// the host holds the namespace open (instance.pin), or together with the kernel's ID of the
// namespace, which is never reused in one boot.
type namespace struct {
	Inode uint64 `json:"inode"`
	ID    uint64 `json:"id,omitempty"` // 0: the kernel has none (before Linux 6.11)
}

// private opens the mount namespace of a process; nil: it is the host's own, whose processes must
// never be killed.
func private(ctx context.Context, p *process.Process) (pin *os.File, ns *namespace, err error) {
	pin, theirs, err := namespaceOf(p.PID())
	if err != nil {
		return nil, nil, err
	}
	own, ours, err := namespaceOf(os.Getpid())
	if err == nil {
		_ = own.Close()
		// p lives, so the opened namespace is its own and not a later process's.
		var again *process.Process
		if again, err = process.Find(ctx, p.Ref()); err == nil {
			again.Release()
		}
	}
	if err != nil || theirs == ours {
		_ = pin.Close()
		return nil, nil, err
	}
	return pin, &theirs, nil
}

func namespaceOf(pid int) (*os.File, namespace, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return nil, namespace{}, fmt.Errorf("open the mount namespace of process %d: %w", pid, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		_ = f.Close()
		return nil, namespace{}, fmt.Errorf("look at the mount namespace of process %d: %w", pid, err)
	}
	ns := namespace{Inode: st.Ino}
	// ioctl_nsfs(2)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.NS_GET_MNTNS_ID,
		uintptr(unsafe.Pointer(&ns.ID))); errno != 0 {
		ns.ID = 0
	}
	return f, ns, nil
}

// observeNamespace opens the namespace of a process that still lives. The namespace of one that
// has ended may live on with its children; without an ID it cannot be told from a later one, and
// its processes are left alone.
func (r *run) observeNamespace(ctx context.Context) error {
	ns := r.rec.MountNS
	if ns == nil {
		return nil
	}
	if r.process != nil {
		pin, now, err := private(ctx, r.process)
		if err != nil && !errors.Is(err, process.ErrGone) {
			return err
		}
		if now != nil && *now == *ns {
			r.pin = pin
			return nil
		}
		_ = pin.Close() // nil where there is none
	}
	if ns.ID == 0 {
		r.m.log.Warn("the workload's process is gone, and others may live on in its mount namespace: they are left alone",
			"workload", r.ref)
		r.rec.MountNS = nil
	}
	return nil
}

// empty kills all processes in a mount namespace and waits until they are gone. It looks
// again until it finds none: a process may fork while it is being killed.
func (ns namespace) empty(ctx context.Context, grace time.Duration) error {
	for look := true; look; {
		look = false
		for _, pid := range process.InMountNamespace(ns.Inode) {
			was, err := ns.kill(ctx, pid, grace)
			if err != nil {
				return fmt.Errorf("kill process %d, which may hang in the kernel: %w", pid, err)
			}
			look = look || was
		}
	}
	return nil
}

// kill kills a process, unless it is not in the namespace: the pid may be another process's by
// now. It reports whether there was one in the namespace, which may have left children.
func (ns namespace) kill(ctx context.Context, pid int, grace time.Duration) (was bool, err error) {
	p, err := process.Observe(pid) //nolint:contextcheck // it does not block
	if err != nil {
		if errors.Is(err, process.ErrGone) {
			return true, ctx.Err()
		}
		return false, err
	}
	defer p.Release()
	f, now, err := namespaceOf(pid) // after the process was opened, so it is that process's
	if err != nil {
		return true, ctx.Err() // it just ended
	}
	_ = f.Close()
	if now != ns {
		return false, nil
	}
	return true, endProcess(ctx, p, unix.SIGKILL, grace)
}
