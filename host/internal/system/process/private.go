package process

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// KeepPrivate keeps the memory of this process, with its keys and tokens, from other processes of its user that lack
// CAP_SYS_PTRACE, and out of core files (prctl(2), PR_SET_DUMPABLE). The programs that it starts leave no core files
// either, but their memory is theirs to protect (execve(2)).
func KeepPrivate() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("keep this process's memory private: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("leave no core files: %w", err)
	}
	return nil
}
