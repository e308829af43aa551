package mountuse

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/moby/sys/mountinfo"
)

// Watch calls changed with the mounts that this process sees, in the order of mounting, at once and after every change,
// until ctx ends.
func Watch(ctx context.Context, changed func([]*mountinfo.Info)) error {
	table, err := os.Open(Self + "/mountinfo")
	if err != nil {
		return fmt.Errorf("open the mount table: %w", err)
	}
	defer table.Close()
	conn, err := table.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch the mount table: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = table.SetReadDeadline(time.Now()) })() // fails only when it is closed
	var failed error
	// The function is called at once and whenever the kernel has reported a change (proc_pid_mountinfo(5)), one that came
	// while it ran included.
	err = conn.Read(func(uintptr) (done bool) {
		mounts, err := Read(Self)
		if err != nil {
			failed = err
			return true
		}
		changed(mounts)
		return false
	})
	if ctx.Err() != nil {
		return nil
	}
	return errors.Join(failed, err)
}
