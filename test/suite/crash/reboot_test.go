package crash

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/lib/testns"
)

const bootID = "/proc/sys/kernel/random/boot_id"

// machine makes a mount namespace in which the kernel's boot id is a file of the test's, and
// returns a process in it.
func (r *rig) machine(t, all *testing.T) int {
	t.Helper()
	r.boot(t)
	cmd, err := testns.Unshared(`mount --bind "$1" `+bootID+`; exec sleep infinity`, r.bootFile)
	if err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL} // also when the tests time out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	all.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	want, err := os.ReadFile(r.bootFile)
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(testhost.Wait); ; {
		got, err := os.ReadFile(fmt.Sprintf("/proc/%d/root%s", cmd.Process.Pid, bootID))
		if err == nil && string(got) == string(want) {
			return cmd.Process.Pid
		}
		if time.Now().After(deadline) {
			t.Fatalf("the machine's boot id is %q, not %q (%v)", got, want, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// boot gives the machine another boot id.
func (r *rig) boot(t *testing.T) {
	t.Helper()
	random, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err == nil {
		err = os.WriteFile(r.bootFile, random, 0o600) // the same file: it is mounted
	}
	if err != nil {
		t.Fatal(err)
	}
}

// reboot leaves of a dead host what a reboot of its machine leaves: no process, no mount and no
// loop device.
func (r *rig) reboot(t *testing.T) {
	t.Helper()
	r.h.Eventually("no process is left", func() error {
		left := r.h.Processes()
		for _, pid := range left {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				t.Fatal(err)
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
	for _, path := range slices.Backward(r.h.Mounts()) {
		if out, err := exec.Command("nsenter", "--target", fmt.Sprint(r.h.Namespace), "--mount", "--", "umount",
			path).CombinedOutput(); err != nil {
			t.Fatalf("unmount %s: %v: %s", path, err, out)
		}
	}
	for _, dev := range r.h.Loops() {
		if out, err := exec.Command("losetup", "--detach", dev).CombinedOutput(); err != nil &&
			!strings.Contains(string(out), "No such device") {
			t.Fatalf("detach %s: %v: %s", dev, err, out)
		}
	}
	r.boot(t)
}

// machines reboots at every instant of a start and of a stop, and under a running workload.
func (p *rigs) machines(t *testing.T, m *matrix) {
	type restart struct {
		crash
		stopping bool
	}
	all := []restart{{crash{who: []string{"host"}}, false}}
	for n, cases := range [][]crash{starts(p.kind), stops(p.kind)} {
		for _, c := range cases {
			if c.point != "" {
				all = append(all, restart{c, n == 1})
			}
		}
	}
	for _, c := range few(16, all) {
		name, described := c.point, family(t)+": machine restarted: "+strings.ReplaceAll(c.point, ":", ": ")
		if c.point == "" {
			name, described = "workload:up", family(t)+": machine restarted: the workload is up"
		}
		if c.stopping {
			name += ":stopping"
			described += ", stopping it"
		}
		m.add(t, name, described, func(t *testing.T) { p.take(t).rebootAt(t, c.crash, c.stopping) })
	}
}

func (r *rig) rebootAt(t *testing.T, c crash, stopping bool) {
	if stopping || c.point == "" {
		r.h.Run("workload", "start", r.h.Path(workloadSpec))
	}
	if c.point == "" {
		r.h.Kill()
	} else {
		crashed := r.arm(t, c)
		args := []string{"workload", "start", r.h.Path(workloadSpec)}
		if stopping {
			args = []string{"workload", "stop", "w"}
		}
		cmd := r.run(t, args...)
		struck(t, c.described(), crashed, cmd)
		_ = cmd.Process.Kill()
		<-cmd.done
		r.h.AwaitEnd()
	}
	r.reboot(t)
	r.h.Launch()
	r.h.NothingInUse() // without a command
	r.equals(t, "after the machine's restart", r.stopped)
	r.h.Run("workload", "start", r.h.Path(workloadSpec))
	r.equals(t, "after a new start", r.running)
	r.h.Run("workload", "stop", "w")
	r.equals(t, "after its stop", r.stopped)
}
