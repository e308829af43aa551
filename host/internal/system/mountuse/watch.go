package mountuse

import (
	"context"
	"errors"
	"fmt"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Watch calls changed with the mounts that this process sees, in the order of mounting, at once and after every change,
// until ctx ends.
func Watch(ctx context.Context, changed func([]*mountinfo.Info)) error {
	// It is no os.File: the runtime would poll it too, and the kernel reports a change to one of both only.
	table, err := unix.Open(Self+"/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the mount table: %w", err)
	}
	defer unix.Close(table)
	end, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("make an eventfd: %w", err)
	}
	defer unix.Close(end)
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woken)
		_, _ = unix.Write(end, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // its counter cannot be full
	})
	defer func() {
		if !stop() {
			<-woken // it does not write to another file of this number
		}
	}()
	for ctx.Err() == nil {
		mounts, err := Read(Self) // before the wait: a change since then ends it
		if err != nil {
			return err
		}
		changed(mounts)
		fds := []unix.PollFd{{Fd: int32(table), Events: unix.POLLPRI}, {Fd: int32(end), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for a change of the mount table: %w", err)
		}
	}
	return nil
}
