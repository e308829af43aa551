package mountuse

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/procfs"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

func tempDir(t *testing.T) string {
	t.Helper()
	return check.Must(filepath.EvalSymlinks(t.TempDir()))(t)
}

// mount unmounts what is left at the end of the test.
func mount(t *testing.T, source, target, fstype string, flags uintptr) {
	t.Helper()
	check.NoError(t, unix.Mount(source, target, fstype, flags, ""))
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
}

// inNamespace runs a script in a mount namespace of its own until the test ends, and returns its PID.
func inNamespace(t *testing.T, propagation, script string, args ...string) int {
	t.Helper()
	args = append([]string{"--mount", "--propagation", propagation, "sh", "-ec", script + "\necho ready\nexec cat", "sh"},
		args...)
	cmd := exec.Command("unshare", args...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	check.NoError(t, err)
	out, err := cmd.StdoutPipe()
	check.NoError(t, err)
	check.NoError(t, cmd.Start())
	t.Cleanup(func() { _, _ = in.Close(), cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the script in the namespace: %q, %v", line, err)
	}
	return cmd.Process.Pid
}

// held lists the copies that a process holds of the mount at path.
func held(t *testing.T, ignore, path, destination string, pid int) []Holder {
	t.Helper()
	v := Volume{Original: Original{Path: path}, Dir: ignore, Destination: destination}
	of := func(all []Holder, err error) []Holder {
		t.Helper()
		check.NoError(t, err)
		return slices.DeleteFunc(all, func(h Holder) bool { return h.PID != pid })
	}
	found := of(Holders(v))
	s, err := v.search(processViews)
	slow := of(s.given(), err)
	if !slices.EqualFunc(found, slow, func(a, b Holder) bool { return a.Path == b.Path && a.ReadOnly == b.ReadOnly }) {
		t.Errorf("of %s it found %v, and without the kernel's list of namespaces %v", path, found, slow)
	}
	return found
}

// The kernel's own lists are what keeps a release from looking at every process, and they have the namespaces that no
// process is in.
func TestKernelListsWhatProcessesSee(t *testing.T) {
	testbin.RequireRoot(t, "what the kernel lists of other namespaces")
	dir := tempDir(t)
	pid := inNamespace(t, "private", "for n in $(seq 300); do mount -t tmpfs many $1; done; mount -o remount,ro $1", dir) // more than one answer's
	table := check.Must(Read(procfs.Dir(pid)))(t)
	namespace := check.Must(procfs.MountNamespace(procfs.Dir(pid)))(t)
	views, err := kernelViews()
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL) {
		t.Skipf("not covered: mount namespaces as this kernel lists them: %v", err)
	}
	check.NoError(t, err)
	listed := views[Tree{namespace, "/"}].mounts
	if len(listed) != len(table) {
		t.Fatalf("the kernel lists %d mounts, the process sees %d", len(listed), len(table))
	}
	for n, m := range table {
		k := listed[n]
		group, masters := propagation(m)
		kernelGroup, kernelMasters := propagation(k)
		if m.ID != k.ID || m.Parent != k.Parent || Device(m) != Device(k) || m.Root != k.Root ||
			m.Mountpoint != k.Mountpoint || baseType(m) != k.FSType || k.Source != "" && m.Source != k.Source || ReadOnly(m) != ReadOnly(k) ||
			group != kernelGroup || !slices.Equal(masters, kernelMasters) {
			t.Errorf("the kernel lists %+v, the process sees %+v", k, m)
		}
	}
}

func TestHoldersOfAMount(t *testing.T) {
	testbin.RequireRoot(t, "who holds a mount in another namespace")
	for name, c := range map[string]struct {
		script   string // $1 is where it is mounted, $2 a folder
		at       string // below $2; empty: it is not held
		readOnly bool
	}{
		"bound":             {script: "mount --bind $1 $2", at: "."},
		"bound read-only":   {script: "mount --bind $1 $2; mount -o remount,bind,ro $2", at: ".", readOnly: true},
		"a part of it":      {script: "mount --bind $1/part $2", at: "."},
		"beside it":         {script: "mount -t tmpfs other $2"},
		"a copy of all":     {script: "true"},
		"a copy of all ...": {script: "mount --rbind / $2; mount --make-rprivate $2"}, // at another place
	} {
		t.Run(name, func(t *testing.T) {
			own, dir := tempDir(t), tempDir(t)
			path := filepath.Join(own, "volume")
			check.NoError(t, os.Mkdir(path, 0o700))
			mount(t, "volume", path, "tmpfs", 0)
			check.NoError(t, os.Mkdir(filepath.Join(path, "part"), 0o700))
			pid := inNamespace(t, "private", c.script, path, dir)
			got := held(t, own, path, "", pid)
			if c.at == "" {
				if len(got) > 0 {
					t.Errorf("it is held: %v", got)
				}
				return
			}
			if len(got) != 1 || got[0].Path != filepath.Join(dir, c.at) || got[0].ReadOnly != c.readOnly ||
				got[0].Command == "" {
				t.Errorf("got %v", got)
			}
			if none := held(t, own, filepath.Dir(path), "", pid); len(none) > 0 {
				t.Errorf("what is not mounted is held: %v", none)
			}
		})
	}
}

// A volume is released while its holders are looked for: its folder goes with its mount.
func TestHoldersOfWhatIsBeingUnmounted(t *testing.T) {
	testbin.RequireRoot(t, "who holds a mount that is being unmounted")
	own := tempDir(t)
	path := filepath.Join(own, "volume")
	begun := time.Now()
	check.Must(Holders(Volume{Original: Original{Path: path}, Dir: own}))(t)
	took := time.Since(begun)
	const moments = 50
	for n := range moments {
		check.NoError(t, os.Mkdir(path, 0o700))
		mount(t, "volume", path, "tmpfs", 0)
		looked := make(chan error, 1)
		go func() {
			_, err := Holders(Volume{Original: Original{Path: path}, Dir: own})
			looked <- err
		}()
		<-time.After(took * time.Duration(n) / moments) // each moment of a look has its turn
		check.NoError(t, unix.Unmount(path, 0))
		check.NoError(t, os.Remove(path))
		check.NoError(t, <-looked)
	}
}

// A copy in this process's own namespace counts as well, unless an agent made it, or it was there before: then the
// volume is a copy of it.
func TestHoldersInTheOwnNamespace(t *testing.T) {
	testbin.RequireRoot(t, "who holds a mount in this namespace")
	host := tempDir(t)
	mount(t, "host", host, "tmpfs", 0)
	check.NoError(t, unix.Mount("", host, "", unix.MS_SHARED, ""))
	dir := func(elem ...string) string {
		path := filepath.Join(append([]string{host}, elem...)...)
		check.NoError(t, os.MkdirAll(path, 0o700))
		return path
	}
	backing, own := dir("backing"), dir("csi")
	mount(t, "backing", backing, "tmpfs", 0)
	staged, first := dir("csi", "d", "staging", "v"), dir("csi", "d", "per-workload", "first")
	second, other := dir("csi", "d", "per-workload", "second"), dir("other", "csi", "d", "staging", "v")
	holders := func(path string) (found []string) {
		t.Helper()
		for _, h := range held(t, own, path, "", 0) {
			found = append(found, check.Must(filepath.Rel(host, h.Path))(t))
			if h.ReadOnly {
				t.Errorf("%s is held by %+v", path, h)
			}
			if h.Only {
				found[len(found)-1] += " only"
			}
		}
		return found
	}
	bind := func(from, to string) { t.Helper(); mount(t, from, to, "", unix.MS_BIND) }
	bind(backing, first)
	bind(first, other)
	if got := holders(first); len(got) > 0 {
		t.Errorf("what nobody copied is held by %v", got)
	}
	bind(first, dir("a"))
	bind(backing, second)
	bind(second, dir("b"))
	for path, want := range map[string][]string{first: {"a only", "b"}, second: {"a", "b"}, staged: nil} {
		if got := holders(path); !slices.Equal(got, want) {
			t.Errorf("%s is held by %v, want %v", path, got, want)
		}
	}
	check.NoError(t, unix.Unmount(first, 0))
	if got := holders(second); !slices.Equal(got, []string{"b only"}) {
		t.Errorf("the second is held by %v", got)
	}
}

// An unmount propagates to copies that are bound with propagation, as a driver's container has them, also through a
// namespace in between.
func TestHoldersOfWhatPropagates(t *testing.T) {
	testbin.RequireRoot(t, "who holds a mount in another namespace")
	for script, want := range map[string]int{ // holders; -1: nobody was given what stays (see TestLeft)
		"mount --rbind $1 $2; mount --make-rshared $2": 0,
		"mount --rbind $1 $2; mount --make-rslave $2":  0,
		"mount --rbind $1 $2; mount --make-rslave $2; mount --make-rshared $2; exec unshare -m --propagation slave sh -c 'echo ready; exec cat'": 0,
		"mount --rbind $1 $2; mount --make-rprivate $2":                      -1,
		"mount --make-slave $1; mkdir $1/x; mount --bind $1/csi/volume $1/x": 1,
	} {
		t.Run(script, func(t *testing.T) {
			own, dir := tempDir(t), tempDir(t)
			mount(t, "host", own, "tmpfs", 0)
			check.NoError(t, unix.Mount("", own, "", unix.MS_SHARED, ""))
			csi := filepath.Join(own, "csi")
			path := filepath.Join(csi, "volume")
			check.NoError(t, os.MkdirAll(path, 0o700))
			mount(t, "volume", path, "tmpfs", 0)
			staged := filepath.Join(csi, "staged")
			check.NoError(t, os.Mkdir(staged, 0o700))
			mount(t, path, staged, "", unix.MS_BIND)
			pid := inNamespace(t, "unchanged", "mount --make-private $2 2>/dev/null || true\n"+script, own, dir)
			if got := held(t, csi, path, "", pid); len(got) != max(0, want) {
				t.Errorf("it is held by %v", got)
			}
			check.NoError(t, errors.Join(unix.Unmount(path, 0), unix.Unmount(staged, 0)))
			left, err := exec.Command("sh", "-c", "grep -c ' - tmpfs volume' /proc/$1/mountinfo", "sh",
				strconv.Itoa(pid)).Output()
			if (err == nil) != (want != 0) {
				t.Errorf("after the unmount the namespace has %s of it, so Holders was wrong", left)
			}
		})
	}
}

// A file system that lies on a volume holds it, in this namespace and in others.
func TestHoldersOfAVolumeWithLayers(t *testing.T) {
	testbin.RequireRoot(t, "what lies on a mount")
	own, dir := tempDir(t), tempDir(t)
	volume, device := filepath.Join(own, "volume"), filepath.Join(own, "device")
	check.NoError(t, os.Mkdir(volume, 0o700))
	check.NoError(t, os.WriteFile(device, nil, 0o600))
	mount(t, "volume", volume, "tmpfs", 0)
	image := filepath.Join(dir, "image")
	check.NoError(t, os.WriteFile(image, nil, 0o600))
	check.NoError(t, os.Truncate(image, 16<<20))
	output(t, "mkfs.ext4", "-q", image)
	disk, _ := attach(t, image)
	mount(t, disk, device, "", unix.MS_BIND)
	for _, sub := range []string{"up", "work"} {
		check.NoError(t, os.Mkdir(filepath.Join(volume, sub), 0o700))
	}
	for _, path := range []string{volume, device} {
		top := filepath.Join(dir, filepath.Base(path))
		check.NoError(t, os.Mkdir(top, 0o700))
		script := "mount -t overlay -o lowerdir=$2,upperdir=$1/up,workdir=$1/work overlay $2"
		if path == device {
			script = "mount -t ext4 $1 $2"
		}
		elsewhere := inNamespace(t, "private", script, path, top)
		if got := held(t, own, path, "", elsewhere); len(got) != 1 || got[0].Path != top {
			t.Errorf("in another namespace %s is held by %v", path, got)
		}
		if got := held(t, own, path, "", 0); len(got) != 0 {
			t.Errorf("here %s is held by %v", path, got)
		}
		output(t, "sh", "-ec", script, "sh", path, top)
		t.Cleanup(func() { _ = unix.Unmount(top, unix.MNT_DETACH) })
		if got := held(t, own, path, "", 0); len(got) != 1 || got[0].Path != top {
			t.Errorf("here %s is held by %v", path, got)
		}
	}
}

func TestHoldersOfADevice(t *testing.T) {
	testbin.RequireRoot(t, "who holds a block device in another namespace")
	own, dir := tempDir(t), tempDir(t)
	path := filepath.Join(own, "volume")
	check.NoError(t, os.WriteFile(path, nil, 0o600))
	image := filepath.Join(own, "image")
	check.NoError(t, os.WriteFile(image, nil, 0o600))
	check.NoError(t, os.Truncate(image, 1<<20))
	device, _ := attach(t, image)
	mount(t, device, path, "", unix.MS_BIND)
	pid := inNamespace(t, "private",
		"mount -t tmpfs root $1; cp -a $2 $1/disk; mknod $1/other b 7 250; ln -s disk $1/link", dir, device)
	for name, want := range map[string]int{"disk": 1, "link": 1, "other": 0, "none": 0} {
		if got := held(t, own, path, filepath.Join(dir, name), pid); len(got) != want {
			t.Errorf("with %s in the container it is held by %v", name, got)
		}
	}
}
