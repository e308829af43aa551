package powerloss

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
)

// frozen is the variable that makes this program freeze a directory's file system, and panic.
const frozen = "POWERLOSS_FREEZE"

// A file system that a test has frozen is thawed though the test's process ends by a panic.
func TestAPanicThaws(t *testing.T) {
	if dir := os.Getenv(frozen); dir != "" {
		Freeze(t, dir)
		go func() { panic("with a frozen file system") }()
		select {}
	}
	dir, _ := Disk(t, FileSystems[0])
	cmd := exec.Command(os.Args[0], "-test.run=^TestAPanicThaws$")
	cmd.Env = append(os.Environ(), frozen+"="+dir)
	if err := cmd.Run(); !errors.As(err, new(*exec.ExitError)) {
		t.Fatalf("the process that panics ended with %v", err)
	}
	wrote := make(chan error, 1)
	go func() { wrote <- os.WriteFile(filepath.Join(dir, "file"), []byte("x"), 0o600) }()
	select {
	case err := <-wrote:
		check.NoError(t, err)
	case <-time.After(30 * time.Second):
		_ = exec.Command("fsfreeze", "--unfreeze", dir).Run()
		t.Fatal("the file system is frozen after its test has ended")
	}
	thaw := Freeze(t, dir)
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	check.NoError(t, err)
	defer unix.Close(fd)
	const freeze = 0xc0045877 // FIFREEZE
	if err := unix.IoctlSetInt(fd, freeze, 0); !errors.Is(err, unix.EBUSY) {
		t.Errorf("what is frozen can be frozen again: %v", err)
	}
	thaw()
	check.NoError(t, os.WriteFile(filepath.Join(dir, "file"), []byte("y"), 0o600))
}
