package testhost

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// throttle is the control group of the kernel that slows disks down (Linux
// Documentation/admin-guide/cgroup-v1/blkio-controller.rst).
const throttle = "/sys/fs/cgroup/blkio"

// SlowDisk limits the running agent's writes to its disk per second, until undo or the end of the test. It returns
// an error if the machine has no such control group.
func (h *Host) SlowDisk(t testing.TB, writes int) (undo func(), err error) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(h.Dir, &st); err != nil {
		return nil, err
	}
	group := filepath.Join(throttle, "pannier-"+filepath.Base(h.Dir))
	if err := os.Mkdir(group, 0o755); err != nil {
		return nil, err
	}
	undo = sync.OnceFunc(func() {
		members, _ := os.ReadFile(group + "/cgroup.procs")
		for pid := range strings.FieldsSeq(string(members)) {
			_ = os.WriteFile(throttle+"/cgroup.procs", []byte(pid), 0) // it may have ended
		}
		if err := os.Remove(group); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("remove the control group of %s: %v", h.Name, err)
		}
	})
	limit := fmt.Sprintf("%d:%d %d", unix.Major(st.Dev), unix.Minor(st.Dev), writes)
	err = errors.Join(os.WriteFile(group+"/blkio.throttle.write_iops_device", []byte(limit), 0),
		os.WriteFile(group+"/cgroup.procs", []byte(strconv.Itoa(h.PID())), 0))
	if err != nil {
		undo()
		return nil, err
	}
	t.Cleanup(undo)
	return undo, nil
}
