package mountuse

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/testbin"
)

// Each release of a volume looks at all processes of the machine.
func BenchmarkHolders(b *testing.B) {
	testbin.RequireRoot(b, "how long the search for holders takes")
	volume := filepath.Join(b.TempDir(), "volume")
	if err := unix.Mkdir(volume, 0o700); err != nil {
		b.Fatal(err)
	}
	if err := unix.Mount("none", volume, "tmpfs", 0, ""); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = unix.Unmount(volume, unix.MNT_DETACH) })
	running := 0
	for _, more := range []int{0, 100, 1000} {
		for ; running < more; running++ {
			cmd := exec.Command("sleep", "1000")
			if err := cmd.Start(); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
		}
		b.Run(strconv.Itoa(more)+"-more-processes", func(b *testing.B) {
			for b.Loop() {
				if _, err := Holders(volume, b.TempDir(), "/data"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Releases at the same time, each of a mount of its own.
func BenchmarkHoldersAtOnce(b *testing.B) {
	testbin.RequireRoot(b, "how long searches for holders take that are made at the same time")
	const volumes = 100
	dir := b.TempDir()
	for n := range volumes {
		path := filepath.Join(dir, strconv.Itoa(n))
		if err := unix.Mkdir(path, 0o700); err != nil {
			b.Fatal(err)
		}
		if err := unix.Mount("none", path, "tmpfs", 0, ""); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	}
	for b.Loop() {
		var all sync.WaitGroup
		for n := range volumes {
			all.Go(func() {
				if _, err := Holders(filepath.Join(dir, strconv.Itoa(n)), dir, "/data"); err != nil {
					b.Error(err)
				}
			})
		}
		all.Wait()
	}
}
