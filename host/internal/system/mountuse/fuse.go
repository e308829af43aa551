package mountuse

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/pannier/pannier/internal/procfs"
)

// Servers lists the processes that serve the FUSE file system with the device number MAJOR:MINOR, as far as the kernel
// tells: before Linux 6.16 it does not, and there is none (proc_pid_fdinfo(5), fuse_connection).
func Servers(device string) (pids []int) {
	minor, ok := strings.CutPrefix(device, "0:")
	if !ok {
		return nil // it is no FUSE file system, or one on a block device
	}
	all, _ := procfs.Numbers(procfs.Root)
	for _, pid := range all {
		if slices.ContainsFunc(procfs.Descriptors(pid, "/dev/fuse"), func(fd int) bool {
			return connection(procfs.Dir(pid)+"/fdinfo/"+strconv.Itoa(fd)) == minor
		}) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func connection(fdinfo string) string {
	text, _ := os.ReadFile(fdinfo)
	_, id, _ := strings.Cut(string(text), "fuse_connection:")
	id, _, _ = strings.Cut(id, "\n")
	return strings.TrimSpace(id)
}
