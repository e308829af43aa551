package mountuse

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

func TestOverlayDirs(t *testing.T) {
	for options, want := range map[string][]string{
		`rw,lowerdir=/a:/b,upperdir=/u,workdir=/w,index=off`:        {"/a", "/b", "/u", "/w"},
		`rw,lowerdir+=/a,lowerdir+=/b::/c,datadir+=/d`:              {"/a", "/b", "", "/c", "/d"},
		`rw,upperdir=/with\040space\054and\134slash,lowerdir=/a\:b`: {`/with space,and\slash`, "/a:b"},
		`rw,size=5m`: nil,
	} {
		if got := overlayDirs(options); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", options, got, want)
		}
	}
}

// As sysfs has it of a disk with a partition, and a device of device mapper above it.
func TestStackedDevices(t *testing.T) {
	dir := t.TempDir()
	for file, text := range map[string]string{
		"holders/dm-3/dev": "253:3\n", "sda1/partition": "1\n", "sda1/dev": "8:1\n", "queue/dev": "1:1\n",
	} {
		check.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o700))
		check.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
	}
	got := stacked(dir)
	slices.Sort(got)
	if !slices.Equal(got, []uint64{unix.Mkdev(8, 1), unix.Mkdev(253, 3)}) {
		t.Errorf("got %x", got)
	}
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).Output()
	check.NoError(t, err)
	return strings.TrimSpace(string(out))
}

// attach attaches an image to a loop device until the end of the test, or until the returned function is called.
func attach(t *testing.T, image string) (device string, detach func()) {
	t.Helper()
	device = output(t, "losetup", "--find", "--show", image)
	detach = func() { _ = exec.Command("losetup", "--detach", device).Run() }
	t.Cleanup(detach)
	return device, detach
}

func TestDiskIsFree(t *testing.T) {
	testbin.RequireRoot(t, "who uses a block device")
	dir := tempDir(t)
	image, at := filepath.Join(dir, "image"), filepath.Join(dir, "at")
	check.NoError(t, os.Mkdir(at, 0o700))
	check.NoError(t, os.WriteFile(image, nil, 0o600))
	check.NoError(t, os.Truncate(image, 16<<20))
	output(t, "mkfs.ext4", "-q", image)
	device, detach := attach(t, image)
	mount(t, device, at, "ext4", 0)
	disk, ok := DiskOf(At(check.Must(Read(Self))(t), at))
	if !ok || disk.Number == "" || disk.Seq == "" {
		t.Fatalf("it is %+v", disk)
	}
	if err := disk.Free(); err == nil || !strings.Contains(err.Error(), device+" is in use") {
		t.Errorf("while it is mounted: %v", err)
	}
	f, err := os.Create(filepath.Join(at, "file"))
	check.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	check.NoError(t, unix.Unmount(at, unix.MNT_DETACH))
	if err := disk.Free(); err == nil || !strings.Contains(err.Error(), "the kernel still has it") {
		t.Errorf("while a detached mount has a file open: %v", err)
	}
	check.NoError(t, f.Close())
	// A mount namespace that another program has begun meanwhile has a copy of the mount.
	check.Eventually(t, "the disk to be free", func() bool { return disk.Free() == nil })
	detach()
	check.NoError(t, disk.Free())
	again, _ := attach(t, image)
	mount(t, again, at, "ext4", 0)
	if err := disk.Free(); again == device && err != nil {
		t.Errorf("when the number is another disk's: %v", err)
	}
}
