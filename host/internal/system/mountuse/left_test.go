package mountuse

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/procfs"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

// volumes are the kinds of what a driver mounts: a file system of its own, and a folder of one with other mounts.
var volumes = map[string]func(t *testing.T, path string){
	"file system": func(t *testing.T, path string) { t.Helper(); mount(t, "volume", path, "tmpfs", 0) },
	"bind": func(t *testing.T, path string) {
		t.Helper()
		backing := tempDir(t)
		mount(t, "backing", backing, "tmpfs", 0)
		check.NoError(t, os.Mkdir(filepath.Join(backing, "volume"), 0o700))
		mount(t, filepath.Join(backing, "volume"), path, "", unix.MS_BIND)
	},
}

// recorded makes a volume of a kind as an agent records it: mounted at a path of its folder, with a program in it.
func recorded(t *testing.T, kind string) Volume {
	t.Helper()
	host := tempDir(t)
	mount(t, "host", host, "tmpfs", 0)
	v := Volume{Dir: filepath.Join(host, "csi")}
	v.Path = filepath.Join(v.Dir, "d", "per-workload", "volume")
	check.NoError(t, os.MkdirAll(v.Path, 0o700))
	volumes[kind](t, v.Path)
	program := check.Must(os.ReadFile("/bin/sleep"))(t)
	check.NoError(t, os.WriteFile(v.Path+"/program", program, 0o755)) //nolint:gosec // it is one
	was := IdentityNow(At(check.Must(Read(Self))(t), v.Path))
	v.Was = &was
	return v
}

// shownTo returns where a process sees something of a volume.
func shownTo(t *testing.T, v Volume, pid int) (paths []string) {
	t.Helper()
	for _, m := range check.Must(Read(procfs.Dir(pid)))(t) {
		if Shows(m, v.Was.info()) {
			paths = append(paths, m.Mountpoint)
		}
	}
	return paths
}

// underItself gives a namespace the volume at the path that it has on the host, as docker run -v P:P does.
const underItself = `mount --bind $1 $2; mount -t tmpfs root $(dirname $1); mkdir $1; mount --move $2 $1`

func left(t *testing.T, v Volume) ([]Holder, []User) {
	t.Helper()
	held, err := Left(v)
	check.NoError(t, err)
	if len(held) > 0 {
		return held, nil
	}
	users, err := Open(v)
	check.NoError(t, err)
	return held, users
}

// What was mounted is known by what it was, whoever has unmounted it, when, and how; and it counts wherever it is, the
// host's own path included.
func TestLeft(t *testing.T) {
	testbin.RequireRoot(t, "what is left of a mount that was unmounted")
	for name, c := range map[string]struct {
		script  string // in a namespace of its own; $1 is where it is mounted, $2 a folder
		polite  bool   // Holders names the namespace's process
		left    bool   // Left does
		removed bool   // Left unmounts what is there
	}{
		"a bind":                       {script: "mount --bind $1 $2", polite: true, left: true},
		"at the host's path":           {script: underItself, polite: true, left: true},
		"at the host's path, in use":   {script: underItself + "; cd $1", polite: true, left: true},
		"a copy of the tree":           {script: "true", removed: true},
		"a copy of the tree, in use":   {script: "cd $1", left: true},
		"the tree at another path":     {script: "mount --rbind / $2; mount --make-rprivate $2", removed: true},
		"the tree elsewhere, in use":   {script: "mount --rbind / $2; mount --make-rprivate $2; umount $1; cd $2$1", left: true},
		"the tree, and nothing of it":  {script: "umount $1"},
		"a part, in a part of a mount": {script: "mkdir -p $1/a/b; mount --bind $1/a/b $2; umount $1", polite: true, left: true},
	} {
		for kind := range volumes {
			t.Run(name+", "+kind, func(t *testing.T) {
				v, dir := recorded(t, kind), tempDir(t)
				pid := inNamespace(t, "private", c.script, v.Path, dir)
				mine := func(all []Holder) bool {
					return slices.ContainsFunc(all, func(h Holder) bool { return h.PID == pid && h.Path != "" && h.Command != "" })
				}
				for _, how := range []string{"mounted", "unmounted by somebody"} {
					if got := check.Must(Holders(v))(t); mine(got) != c.polite || len(got) > 0 != c.polite {
						t.Errorf("%s, it is held by %v", how, got)
					}
					if how == "mounted" {
						check.NoError(t, unix.Unmount(v.Path, unix.MNT_DETACH))
					}
				}
				held, users := left(t, v)
				if mine(held) != c.left || len(held) > 0 != c.left || len(users) > 0 {
					t.Errorf("there are left %v, %v", held, users)
				}
				if paths := shownTo(t, v, pid); len(paths) > 0 != c.left {
					t.Errorf("the namespace shows it at %v", paths)
				}
			})
		}
	}
}

// A namespace may be held by a descriptor, without a process.
func TestLeftInANamespaceWithoutProcess(t *testing.T) {
	testbin.RequireRoot(t, "what is left in a namespace without a process")
	if _, err := kernelViews(); err != nil {
		t.Skipf("not covered: namespaces without a process, which this kernel does not list: %v", err)
	}
	for kind := range volumes {
		v, dir := recorded(t, kind), tempDir(t)
		pid := inNamespace(t, "private", "mount --bind $1 $2", v.Path, dir)
		namespace := check.Must(os.Open(procfs.Dir(pid) + "/ns/mnt"))(t)
		t.Cleanup(func() { _ = namespace.Close() })
		file := check.Must(os.Open(filepath.Join(procfs.Dir(pid), "root", dir, "program")))(t)
		t.Cleanup(func() { _ = file.Close() })
		endOf(t, pid)
		check.NoError(t, unix.Unmount(v.Path, 0))
		if got := check.Must(Holders(v))(t); len(got) > 0 {
			t.Errorf("%s: nobody is there, and it is held by %v", kind, got)
		}
		if held, _ := left(t, v); len(held) != 1 {
			t.Errorf("%s: while a file is open in it, there are left %v", kind, held)
		}
		check.NoError(t, file.Close())
		if held, users := left(t, v); len(held)+len(users) > 0 {
			t.Errorf("%s: there are left %v, %v", kind, held, users)
		}
	}
}

// blockVolume is a volume that is a block device, bound to its path.
func blockVolume(t *testing.T) (v Volume, device string) {
	t.Helper()
	v.Dir = tempDir(t)
	v.Path = filepath.Join(v.Dir, "volume")
	image := filepath.Join(tempDir(t), "image")
	check.NoError(t, os.WriteFile(v.Path, nil, 0o600))
	check.NoError(t, os.WriteFile(image, make([]byte, 1<<20), 0o600))
	device, _ = attach(t, image)
	mount(t, device, v.Path, "", unix.MS_BIND)
	return v, device
}

// A container may open a device node that it was given at any time.
func TestLeftOfADevice(t *testing.T) {
	testbin.RequireRoot(t, "what is left of a block device")
	v, device := blockVolume(t)
	was := IdentityNow(At(check.Must(Read(Self))(t), v.Path))
	v.Was = &was
	pid := inNamespace(t, "private", "cp -a $1 $2/node; umount $3; mount -t tmpfs dev /dev; mkdir /dev/disk; cp -a $2/node /dev/disk/data",
		device, tempDir(t), v.Path)
	for _, how := range []string{"mounted", "unmounted"} {
		if got := check.Must(Holders(v))(t); len(got) != 1 || got[0].PID != pid || got[0].Path != "/dev/disk/data" {
			t.Errorf("%s, it is held by %v", how, got)
		}
		if how == "mounted" {
			check.NoError(t, unix.Unmount(v.Path, 0))
		}
	}
	if held, _ := left(t, v); len(held) != 1 || held[0].PID != pid {
		t.Errorf("there are left %v", held)
	}
	endOf(t, pid)
	if held, users := left(t, v); len(held)+len(users) > 0 {
		t.Errorf("there are left %v, %v", held, users)
	}
}

// A privileged container's /dev has all devices of the machine, and its memory: it was not given the volume's.
func TestPrivilegedContainerHoldsNoDevice(t *testing.T) {
	testbin.RequireRoot(t, "who holds a block device in another namespace")
	v, device := blockVolume(t)
	inNamespace(t, "private", "cp -a $1 $2; umount $3; mount -t tmpfs dev /dev; cp -a $2/* /dev; mknod /dev/mem c 1 1", device, tempDir(t), v.Path)
	if got := check.Must(Holders(v))(t); len(got) > 0 {
		t.Errorf("it is held by %v", got)
	}
}

// In this process's own namespace, what is older than the volume's mount is what the driver serves it from.
func TestLeftInTheOwnNamespace(t *testing.T) {
	testbin.RequireRoot(t, "what is left of a mount that was unmounted")
	v := recorded(t, "bind")
	if v.Was.Unique == 0 {
		t.Skip("not covered: the order of mounts of which one is gone, which this kernel does not tell")
	}
	check.NoError(t, unix.Unmount(v.Path, 0))
	if held, users := left(t, v); len(held)+len(users) > 0 {
		t.Errorf("there are left %v, %v", held, users)
	}
	for kind := range volumes {
		v, at := recorded(t, kind), tempDir(t)
		mount(t, v.Path, at, "", unix.MS_BIND)
		check.NoError(t, unix.Unmount(v.Path, 0))
		for _, look := range []func() []Holder{
			func() []Holder { return check.Must(Holders(v))(t) },
			func() []Holder { held, _ := left(t, v); return held },
		} {
			if got := look(); len(got) != 1 || got[0].PID != 0 || got[0].Path != at {
				t.Errorf("%s: it is held by %v", kind, got)
			}
		}
	}
}

// What was unmounted lazily, and what was opened in a namespace that is gone, is in no table. Its users are found,
// whatever they have of it.
func TestLeftOpen(t *testing.T) {
	testbin.RequireRoot(t, "mounts that are detached")
	for kind := range volumes {
		t.Run(kind, func(t *testing.T) {
			v, dir := recorded(t, kind), tempDir(t)
			users := map[int]string{}
			run := func(why, script string, args ...string) {
				t.Helper()
				cmd := exec.Command("sh", append([]string{"-ec", script, "sh"}, args...)...)
				in, err := cmd.StdinPipe()
				check.NoError(t, err)
				out, err := cmd.StdoutPipe()
				check.NoError(t, err)
				check.NoError(t, cmd.Start())
				users[cmd.Process.Pid] = why
				t.Cleanup(func() { _, _, _ = in.Close(), cmd.Process.Kill(), cmd.Wait() })
				if strings.Contains(script, "echo ready") {
					check.Must(bufio.NewReader(out).ReadString('\n'))(t)
					return
				}
				check.Eventually(t, "it has begun", func() bool {
					args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", cmd.Process.Pid))
					return err == nil && strings.HasSuffix(string(args), "\x001000\x00")
				})
			}
			run(" open", "exec 3<$1/program; cd /; echo ready; read x", v.Path)
			run("its cwd is", "cd $1; echo ready; read x", v.Path)
			run("its exe is", "cd /; exec $1/program 1000", v.Path)
			container := inNamespace(t, "private", "mount --bind $1 $2", v.Path, dir)
			// as a descriptor that was passed over a socket
			run(" open", "exec 3<$1; cd /; echo ready; read x", filepath.Join(procfs.Dir(container), "root", dir, "program"))
			endOf(t, container)
			other := recorded(t, kind)
			if kind == "bind" { // another folder of the same file system
				other.Path = filepath.Join(tempDir(t), "other")
				check.NoError(t, os.Mkdir(other.Path, 0o700))
				check.NoError(t, os.Mkdir(backingOf(t, v)+"/other", 0o700))
				check.NoError(t, os.WriteFile(backingOf(t, v)+"/other/program", nil, 0o600))
				mount(t, backingOf(t, v)+"/other", other.Path, "", unix.MS_BIND)
			}
			run("nothing", "exec 3<$1/program; cd /; echo ready; read x", other.Path)
			check.NoError(t, unix.Unmount(other.Path, unix.MNT_DETACH))
			f := check.Must(os.Open(v.Path + "/program"))(t)
			mapped := check.Must(unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED))(t)
			defer func() { _ = unix.Munmap(mapped) }()
			check.NoError(t, f.Close())
			check.NoError(t, unix.Unmount(v.Path, unix.MNT_DETACH))

			held, found := left(t, v)
			if len(held) > 0 {
				t.Errorf("it is held by %v", held)
			}
			maps.DeleteFunc(users, func(_ int, why string) bool { return why == "nothing" })
			for _, u := range found {
				if why := users[u.PID]; why == "" || !strings.Contains(u.Why, why) {
					t.Errorf("process %d: %s, want %q", u.PID, u.Why, why)
				}
				delete(users, u.PID)
			}
			if len(users) > 0 {
				t.Errorf("not found: %v", users)
			}
			// The search leaves this process out.
			sc := check.Must(Look([]Original{v.Original}, nil))(t)
			defer sc.Close()
			if u := sc.userOf(os.Getpid(), false); u == nil || !strings.Contains(u.Why, "/program mapped") {
				t.Errorf("what is mapped: %+v", u)
			}
		})
	}
}

// backingOf returns where the file system is mounted of which a volume is a folder.
func backingOf(t *testing.T, v Volume) string {
	t.Helper()
	for _, m := range check.Must(Read(Self))(t) {
		if m.Root == "/" && Device(m) == Device(v.Was.info()) {
			return m.Mountpoint
		}
	}
	t.Fatal("no mount shows all of it")
	return ""
}

// Any process can give its memory the name of a file (PR_SET_VMA).
func TestNamedMemoryIsNoFile(t *testing.T) {
	testbin.RequireRoot(t, "what processes have mapped")
	v := recorded(t, "file system")
	memory := check.Must(unix.Mmap(-1, 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS))(t)
	defer func() { _ = unix.Munmap(memory) }()
	name := append([]byte(v.Path+"/program"), 0)
	const setVMA, anonName = 0x53564d41, 0
	err := unix.Prctl(setVMA, anonName, uintptr(unsafe.Pointer(&memory[0])), 4096, uintptr(unsafe.Pointer(&name[0])))
	if err != nil {
		t.Skipf("not covered: memory with a name, which this kernel does not have: %v", err)
	}
	if maps := check.Must(os.ReadFile("/proc/self/maps"))(t); !strings.Contains(string(maps), "[anon:"+v.Path) {
		t.Fatal("the memory has no name")
	}
	sc := check.Must(Look([]Original{v.Original}, nil))(t)
	defer sc.Close()
	if u := sc.userOf(os.Getpid(), false); u != nil {
		t.Errorf("it counts as a use: %s", u.Why)
	}
}

func endOf(t *testing.T, pid int) {
	t.Helper()
	check.NoError(t, unix.Kill(pid, unix.SIGKILL))
	check.Eventually(t, "process "+strconv.Itoa(pid)+" has ended", func() bool {
		s, err := procfs.ReadStat(procfs.Dir(pid))
		return err != nil || s.Ended()
	})
}
