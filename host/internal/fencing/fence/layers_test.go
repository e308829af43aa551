package fence

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/fencing/boottime"
)

// block makes a volume that is a block device with a file system in it.
func block(t *testing.T) volume {
	t.Helper()
	v := newVolume(t)
	v.backing, v.image = image(t, filepath.Dir(v.staging), "ext4"), true
	device := loop(t, v.backing)
	for _, path := range []string{v.staging, v.target} {
		must(t, os.Remove(path))
		must(t, os.WriteFile(path, nil, 0o600))
		must(t, unix.Mount(device, path, "", unix.MS_BIND, ""))
		t.Cleanup(func() { unmountQuietly(path) })
	}
	return v
}

// A process that writes to a volume through another file system on top of it is killed, and that file system
// is unmounted.
func TestLayersAreTakenAway(t *testing.T) {
	const overlay = `mkdir -p $1/up $1/work $2/low $2/top
		mount -t overlay -o lowerdir=$2/low,upperdir=$1/up,workdir=$1/work overlay $2/top
		`
	for name, c := range map[string]struct {
		volume    func(t *testing.T) volume
		namespace bool
		script    string // $1 is the published path, $2 a folder; it writes to $2/top
	}{
		"an overlay on a folder":    {volume: bound, script: overlay},
		"an overlay":                {volume: ext4, script: overlay},
		"an overlay in a namespace": {volume: ext4, namespace: true, script: overlay + "umount $1"},
		"an overlay bound elsewhere": {volume: ext4, script: overlay +
			"mkdir $2/bound; mount --bind $2/top $2/bound; umount $2/top; mount --bind $2/bound $2/top; umount $2/bound"},
		"an overlay on an overlay": {volume: ext4, script: overlay + `mkdir $2/over
			mount -t overlay -o lowerdir=$2/low:$2/top overlay $2/over; cd $2/over`},
		"a file system in a file": {volume: bound, script: `mkdir $2/top; truncate -s 32M $1/image
			mkfs.ext4 -q $1/image; mount -o loop $1/image $2/top`},
		"a file system on the block device": {volume: block, script: "mkdir $2/top; mount -t ext4 $1 $2/top"},
		"a loop device on the block device": {volume: block, script: `mkdir $2/top
			mount -t ext4 $(losetup -f --show $(losetup -j $3 -O NAME -n)) $2/top`},
		"a partition of the block device": {volume: block, script: `mkdir $2/top; device=$(losetup -j $3 -O NAME -n)
			addpart $device 1 2048 40960; mkfs.ext4 -q ${device}p1; mount ${device}p1 $2/top`},
	} {
		t.Run(name, func(t *testing.T) {
			v, dir, aside := c.volume(t), folder(t), t.TempDir()
			t.Cleanup(func() {
				_ = exec.Command("umount", "-l", aside+"/over", aside+"/bound", aside+"/top").Run()
				for _, device := range loops(t, v) {
					_ = exec.Command("losetup", "-d", device).Run()
				}
				for _, device := range strings.Fields(run(t, "losetup", "-j", v.backing, "-O", "NAME", "-n")) {
					_ = exec.Command("delpart", device, "1").Run()
				}
			})
			client := open(t, dir)
			update(t, client, func(c Change) { c.Protect(v.mounts...) })
			script := c.script + "\nexec 3>$2/top/file; echo ready; exec sleep 1000"
			args := []string{"sh", "-ec", script, "sh", v.target, aside, v.backing}
			if c.namespace {
				args = append([]string{"unshare", "--mount", "--propagation", "private"}, args...)
			}
			h := start(t, exec.Command(args[0], args[1:]...))
			deadline := boottime.Now().Add(100 * time.Millisecond)
			setDeadline(t, client, deadline)
			notBefore(t, "it ended", h.ends(t), deadline)
			r := finished(t, dir, 1)
			if mounted(t, aside) || mounted(t, v.target) || mounted(t, v.staging) {
				t.Error("something is still mounted")
			}
			if left := loops(t, v); len(left) > 0 {
				t.Errorf("loop devices are left: %v", left)
			}
			if len(r.Detached) != 0 || len(r.Left) != 0 || !slices.Contains(r.Unmounted, v.target) {
				t.Errorf("the report is %+v", r)
			}
		})
	}
}

// loops lists the loop devices that lie on a volume.
func loops(t *testing.T, v volume) (found []string) {
	t.Helper()
	own := strings.Fields(run(t, "losetup", "-j", v.backing, "-O", "NAME", "-n"))
	for line := range strings.Lines(run(t, "losetup", "-l", "-O", "NAME,BACK-FILE", "-n")) {
		words := strings.Fields(line)
		if len(words) == 2 && (slices.Contains(own, words[1]) || strings.HasPrefix(words[1], filepath.Dir(v.target)+"/") &&
			words[1] != v.backing) {
			found = append(found, words[0])
		}
	}
	return found
}

// The fence is not done while the kernel still uses the file system of a volume, even if no mount table shows
// that: the overlay here was mounted by paths that no longer exist.
func TestFileSystemThatIsStillInUse(t *testing.T) {
	v, dir, aside := ext4(t), folder(t), t.TempDir()
	t.Cleanup(func() { unmountQuietly(aside) })
	c := open(t, dir)
	update(t, c, func(c Change) { c.Protect(v.mounts...) })
	h := shell(t, `cd $1; mkdir low up work; mount -i -t overlay -o lowerdir=low,upperdir=up,workdir=work overlay $2
		cd /; exec 3>$2/file; echo ready; exec sleep 1000`, v.target, aside)
	setDeadline(t, c, boottime.Now())
	eventually(t, "a report of what is left", func() bool {
		all, err := Reports(dir)
		must(t, err)
		return len(all) == 1 && len(all[0].Unmounted) == 2 && strings.Contains(strings.Join(all[0].Left, ""), "is in use")
	})
	if all, _ := Reports(dir); all[0].Done != 0 || !h.lives() {
		t.Errorf("the report is %+v", all[0])
	}
	must(t, h.Process.Kill())
	must(t, unix.Unmount(aside, unix.MNT_DETACH))
	if r := finished(t, dir, 1); len(r.Left) != 0 {
		t.Errorf("the report is %+v", r)
	}
}
