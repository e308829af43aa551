package mountuse

import (
	"os/exec"
	"path/filepath"
	"strconv"
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
