package fence

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/fencing/boottime"
	"github.com/pannier/pannier/host/internal/system/mountuse"
	"github.com/pannier/pannier/internal/procfs"
)

var redis = claim.WorkloadRef{Namespace: "default", ID: "redis"}

// notBefore fails the test if something happened before the deadline.
func notBefore(t *testing.T, what string, at, deadline boottime.Instant) {
	t.Helper()
	if at < deadline {
		t.Errorf("%s %v before the deadline", what, deadline.Sub(at))
	}
}

// At the deadline the processes that use a volume, in any way, are killed, and the volume is unmounted.
func TestHoldersAreKilledAtTheDeadline(t *testing.T) {
	for kind, make := range map[string]func(*testing.T) volume{"bound folder": bound, "ext4": ext4} {
		for name, hold := range map[string]func(t *testing.T, v volume) *child{
			"writes a file": func(t *testing.T, v volume) *child { return writer(t, filepath.Join(v.target, "times")) },
			"has its working directory there": func(t *testing.T, v volume) *child {
				return shell(t, "cd $1; echo ready; exec sleep 1000", v.target)
			},
			"came by the staging path": func(t *testing.T, v volume) *child {
				return shell(t, "exec 3>$1/file; echo ready; exec sleep 1000", v.staging)
			},
			"runs a program from it": func(t *testing.T, v volume) *child {
				return shell(t, "cp $(command -v sleep) $1/sleep; echo ready; exec $1/sleep 1000", v.target)
			},
			"has a mount of its own below it": func(t *testing.T, v volume) *child {
				return shell(t, "mkdir $1/below; mount -t tmpfs below $1/below; exec 3>$1/below/file; echo ready; exec sleep 1000",
					v.target)
			},
			"has it in a namespace at another path": func(t *testing.T, v volume) *child {
				return start(t, exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-ec",
					"mkdir $2; mount --bind $1 $2; umount $1; exec 3>$2/file; echo ready; exec sleep 1000", "sh", v.target,
					filepath.Join(t.TempDir(), "data")))
			},
			"has it in this namespace at another path": func(t *testing.T, v volume) *child {
				aside := t.TempDir()
				t.Cleanup(func() { unmountQuietly(aside) })
				return shell(t, "mount --bind $1 $2; exec 3>$2/file; echo ready; exec sleep 1000", v.target, aside)
			},
			"has a file open in a copy of everything": func(t *testing.T, v volume) *child {
				return start(t, exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-ec",
					"exec 3>$1/file; echo ready; exec sleep 1000", "sh", v.target))
			},
			"is in a root of its own": func(t *testing.T, v volume) *child {
				return shell(t, `mkdir -p $1/bin $1/lib $1/lib64; cp $(command -v busybox || command -v sleep) $1/bin/sleep
					for lib in $(ldd $1/bin/sleep 2>/dev/null | grep -o '/[^ ]*'); do mkdir -p $1$(dirname $lib); cp $lib $1$lib; done
					echo ready; exec chroot $1 /bin/sleep 1000`, v.target)
			},
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				v, dir := make(t), folder(t)
				c := open(t, dir)
				update(t, c, func(c Change) { c.Protect(v.mounts...) })
				bystander := shell(t, "cd $1; exec 3>$1/bystander; echo ready; exec sleep 1000", filepath.Dir(v.staging))
				h := hold(t, v)
				deadline := boottime.Now().Add(300 * time.Millisecond)
				setDeadline(t, c, deadline)
				notBefore(t, "it ended", h.ends(t), deadline)
				r := finished(t, dir, 1)
				notBefore(t, "the fence was done", r.Done, deadline)
				if mounted(t, v.staging) || mounted(t, v.target) {
					t.Error("the volume is still mounted")
				}
				if len(r.Killed) == 0 || r.Killed[0].Why == "" || len(r.Detached) != 0 || len(r.Left) != 0 {
					t.Errorf("the report is %+v", r)
				}
				if !slices.Equal(r.Unmounted, []string{v.target, v.staging}) {
					t.Errorf("unmounted %v, want the published path, then the staging path", r.Unmounted)
				}
				if !bystander.lives() {
					t.Error("who had nothing of the volume was killed too")
				}
				if name == "writes a file" {
					if last := lastWritten(t, v.read(t, "times")); last > r.Done {
						t.Errorf("something was written %v after the fence said that it was done", last.Sub(r.Done))
					}
				}
			})
		}
	}
}

// A process whose namespace has a copy of the volume, but that has nothing of it open, survives and loses the copy.
func TestCopyIsUnmountedInItsNamespace(t *testing.T) {
	v, dir := bound(t), folder(t)
	c := open(t, dir)
	update(t, c, func(c Change) { c.Protect(v.mounts...) })
	copied := start(t, exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-ec",
		"echo ready; exec sleep 1000"))
	has := func() bool {
		table, err := mountuse.Read(procfs.Dir(copied.Process.Pid))
		must(t, err)
		for _, m := range table {
			if m.Mountpoint == v.target || m.Mountpoint == v.staging {
				return true
			}
		}
		return false
	}
	if !has() {
		t.Fatal("the other namespace does not have the volume")
	}
	setDeadline(t, c, boottime.Now())
	r := finished(t, dir, 1)
	if has() || mounted(t, v.target) || mounted(t, v.staging) {
		t.Error("the volume is still mounted")
	}
	if !copied.lives() || len(r.Killed) > 0 {
		t.Errorf("who had nothing open was killed: %+v", r.Killed)
	}
}

// A process whose namespace was given the volume, as a container is, is killed even if it has nothing of it open.
func TestContainersAreKilled(t *testing.T) {
	v, dir := bound(t), folder(t)
	c := open(t, dir)
	update(t, c, func(c Change) { c.Protect(v.mounts...) })
	contained := start(t, exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-ec",
		"mount --bind "+v.target+" "+t.TempDir()+"; umount "+v.target+"; umount "+v.staging+"; echo ready; exec sleep 1000"))
	setDeadline(t, c, boottime.Now())
	r := finished(t, dir, 1)
	contained.ends(t)
	if len(r.Killed) != 1 || r.Killed[0].PID != contained.Process.Pid {
		t.Errorf("killed: %+v", r.Killed)
	}
	if mounted(t, v.target) || mounted(t, v.staging) {
		t.Error("the volume is still mounted")
	}
}

// What the agent has said of a mount counts at the deadline, whoever has unmounted it before, and how.
func TestVolumeThatSomebodyUnmounted(t *testing.T) {
	for kind, make := range map[string]func(*testing.T) volume{"bound folder": bound, "ext4": ext4} {
		for name, c := range map[string]struct {
			script, option string // $1 is the volume, $2 a folder
			namespace      bool
		}{
			"a container has it":                    {script: "mount --bind $1 $2; umount $1", namespace: true},
			"a container has it at the host's path": {script: "mount --bind $1 $2; mount -t tmpfs root $(dirname $1); mkdir $1; mount --move $2 $1", namespace: true},
			"it is bound elsewhere":                 {script: "mount --bind $1 $2; exec 3>$2/file"},
			"a file of it is open":                  {script: "exec 3>$1/file", option: "-l"},
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				v, dir, aside := make(t), folder(t), t.TempDir()
				t.Cleanup(func() { unmountQuietly(aside) })
				client := open(t, dir)
				update(t, client, func(c Change) { c.Protect(v.mounts...) })
				known := slices.Clone(v.mounts)
				for i := range known {
					table, err := mountuse.Read(mountuse.Self)
					must(t, err)
					was := mountuse.IdentityNow(mountuse.At(table, known[i].Path))
					known[i].Was = &was
				}
				update(t, client, func(c Change) { c.Protect(known...) })
				update(t, client, func(c Change) { c.Protect(v.mounts...) }) // by an agent that does not know what is there
				args := []string{"sh", "-ec", c.script + "; echo ready; exec sleep 1000", "sh", v.target, aside}
				if c.namespace {
					args = append([]string{"unshare", "--mount", "--propagation", "private"}, args...)
				}
				h := start(t, exec.Command(args[0], args[1:]...))
				for _, path := range []string{v.target, v.staging} {
					run(t, "umount", append(strings.Fields(c.option), path)...)
				}
				setDeadline(t, client, boottime.Now())
				h.ends(t)
				r := finished(t, dir, 1)
				if len(r.Killed) != 1 || r.Killed[0].PID != h.Process.Pid || mounted(t, aside) {
					t.Errorf("the report is %+v", r)
				}
			})
		}
	}
}

// A container that was given the block device may open it at any time.
func TestContainerWithADeviceNodeIsKilled(t *testing.T) {
	v, dir := newVolume(t), folder(t)
	device := loop(t, image(t, filepath.Dir(v.staging), "ext4"))
	must(t, os.Remove(v.target))
	must(t, os.WriteFile(v.target, nil, 0o600))
	must(t, unix.Mount(device, v.target, "", unix.MS_BIND, ""))
	t.Cleanup(func() { unmountQuietly(v.target) })
	c := open(t, dir)
	update(t, c, func(c Change) { c.Protect(v.mounts[0]) })
	container := func(nodes string) *child {
		return start(t, exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-ec",
			"cp -a $1 $2/node; umount $3; mount -t tmpfs dev /dev; "+nodes+"; echo ready; exec sleep 1000", "sh", device, t.TempDir(), v.target))
	}
	given := container("mkdir /dev/disk; cp -a $2/node /dev/disk/data")
	other, privileged := container("mknod /dev/null c 1 3"), container("cp -a $2/node /dev/data; mknod /dev/mem c 1 1")
	setDeadline(t, c, boottime.Now())
	given.ends(t)
	r := finished(t, dir, 1)
	if len(r.Killed) != 1 || r.Killed[0].PID != given.Process.Pid || !other.lives() || !privileged.lives() {
		t.Errorf("the report is %+v", r)
	}
}

// A copy in the fence's own namespace is unmounted. The mount from which the driver serves the volume, and
// other agents' mounts, are not.
func TestCopiesInTheOwnNamespace(t *testing.T) {
	v, dir := newVolume(t), folder(t)
	c := open(t, dir)
	update(t, c, func(c Change) { c.Protect(v.mounts...) })
	base := filepath.Dir(v.staging)
	source, aside := filepath.Join(base, "source"), filepath.Join(base, "aside")
	other := filepath.Join(base, "csi", "driver", "staging", "of another agent")
	for _, dir := range []string{source, aside, other} {
		must(t, os.MkdirAll(dir, 0o700))
		t.Cleanup(func() { unmountQuietly(dir) })
	}
	must(t, unix.Mount("source", source, "tmpfs", 0, ""))
	v.mount(t, source, "", unix.MS_BIND)
	must(t, unix.Mount(v.target, aside, "", unix.MS_BIND, ""))
	must(t, unix.Mount(v.target, other, "", unix.MS_BIND, ""))
	server := shell(t, "exec 3>$1/file 4>$2/file; echo ready; exec sleep 1000", source, other)
	setDeadline(t, c, boottime.Now())
	finished(t, dir, 1)
	for path, want := range map[string]bool{v.staging: false, aside: false, source: true, other: true} {
		if mounted(t, path) != want {
			t.Errorf("after the fence, something is mounted at %s: %v", path, !want)
		}
	}
	if !server.lives() {
		t.Error("who serves the volume was killed")
	}
}

// A mount that was detached while a file of it was open is in no mount table.
func TestDetachedMountIsFoundByItsFileSystem(t *testing.T) {
	v, dir := ext4(t), folder(t)
	c := open(t, dir)
	update(t, c, func(c Change) { c.Protect(v.mounts...) })
	must(t, os.Mkdir(filepath.Join(filepath.Dir(v.target), "aside"), 0o700))
	h := shell(t, "mount --bind $1 $2; exec 3>$2/file; umount --lazy $2; echo ready; exec sleep 1000", v.target,
		filepath.Join(filepath.Dir(v.target), "aside"))
	deadline := boottime.Now().Add(300 * time.Millisecond)
	setDeadline(t, c, deadline)
	notBefore(t, "it ended", h.ends(t), deadline)
	finished(t, dir, 1)
}

// A workload's own process is killed whether or not it has a volume open.
func TestNamedProcessesAreKilled(t *testing.T) {
	dir := folder(t)
	c := open(t, dir)
	named, other := shell(t, "echo ready; exec sleep 1000"), shell(t, "echo ready; exec sleep 1000")
	update(t, c, func(c Change) {
		c.ProtectProcess(Process{PID: named.Process.Pid, StartTime: startTime(t, named), Workload: redis})
		// the pid is another's
		c.ProtectProcess(Process{PID: other.Process.Pid, StartTime: startTime(t, other) + 1, Workload: redis})
	})
	deadline := boottime.Now().Add(300 * time.Millisecond)
	setDeadline(t, c, deadline)
	notBefore(t, "it ended", named.ends(t), deadline)
	r := finished(t, dir, 1)
	if !other.lives() || len(r.Killed) != 1 || !slices.Equal(r.Workloads, []claim.WorkloadRef{redis}) {
		t.Errorf("the report is %+v", r)
	}
}

func startTime(t *testing.T, c *child) uint64 {
	t.Helper()
	st, err := procfs.ReadStat(procfs.Dir(c.Process.Pid))
	must(t, err)
	return st.StartTime
}

// The fence does nothing while its deadline is postponed, or if it has none.
func TestPostponedDeadline(t *testing.T) {
	for tries := 1; !putOff(t); tries++ {
		if tries == 10 {
			t.Fatal("the deadline was never put off in time")
		}
	}
}

// putOff returns false if the first deadline had passed before it was postponed.
func putOff(t *testing.T) bool {
	t.Helper()
	v, dir := bound(t), folder(t)
	c := open(t, dir)
	w := writer(t, filepath.Join(v.target, "times"))
	update(t, c, func(c Change) { c.Protect(v.mounts...) }) // no deadline was ever set
	first := boottime.Now().Add(400 * time.Millisecond)
	setDeadline(t, c, first)
	setDeadline(t, c, first.Add(time.Hour))
	if boottime.Now() >= first {
		return false
	}
	eventually(t, "the first deadline", func() bool { return boottime.Now() > first.Add(2*firstWatch) })
	setDeadline(t, c, first.Add(2*time.Hour)) // it has looked since then
	if !w.lives() || !mounted(t, v.target) {
		t.Error("the fence acted before its deadline")
	}
	if r, err := c.Reports(); err != nil || len(r) > 0 {
		t.Errorf("reports %v, %v", r, err)
	}
	update(t, c, func(c Change) { c.Release(v.mounts...) })
	setDeadline(t, c, 1)
	update(t, c, func(Change) {})
	if !w.lives() {
		t.Error("the fence killed who uses what was released")
	}
	return true
}

// A mount is in no table any more while the kernel still writes its data. The fence is done only after that, and
// reports what was unmounted.
func TestSlowUnmount(t *testing.T) {
	a := newActor(folder(t), hclog.NewNullLogger(), func() bool { return true })
	defer a.close()
	a.report = &Report{}
	written := make(chan struct{})
	slow := a.try("1 /staged", Mount{Path: "/staged", Staging: true}, func(int) error { <-written; return nil })
	a.wait([]try{slow}, map[string]bool{})
	if !a.round(State{}) || a.report.Done != 0 ||
		!slices.Equal(a.report.Left, []string{"unmount 1 /staged: the kernel has not finished"}) {
		t.Errorf("while the kernel writes, the report is %+v", *a.report)
	}
	close(written)
	<-slow.unmount.done
	if !a.round(State{}) || a.round(State{}) || a.report.Done == 0 ||
		!slices.Equal(a.report.Unmounted, []string{"/staged"}) || len(a.report.Left) != 0 {
		t.Errorf("after that, the report is %+v", *a.report)
	}
}

// A driver finishes a mount after the deadline.
func TestMountAfterTheDeadline(t *testing.T) {
	v, dir := newVolume(t), folder(t)
	c := open(t, dir)
	update(t, c, func(c Change) { c.Protect(v.mounts...) })
	setDeadline(t, c, boottime.Now())
	update(t, c, func(Change) {})
	for n := 1; n <= 2; n++ {
		v.mount(t, t.TempDir(), "", unix.MS_BIND)
		eventually(t, "the end of the mount", func() bool { return !mounted(t, v.target) && !mounted(t, v.staging) })
		finished(t, dir, n)
	}
}
