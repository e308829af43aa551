package mountuse

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/bounded"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/hungfs"
	"github.com/pannier/pannier/test/lib/testbin"
)

// A file system does not answer, to root or to its mounter alone. Who has it is found without it.
func TestUsersOfWhatHangs(t *testing.T) {
	testbin.RequireRoot(t, "who uses a file system that does not answer")
	for name, user := range map[string]int{"root's": 0, "another user's": 65534} {
		t.Run(name, func(t *testing.T) {
			dir := tempDir(t)
			hungfs.Mount(t, dir, user)
			v := Volume{Original: Original{Path: dir}, Dir: dir}
			was := IdentityNow(At(check.Must(Read(Self))(t), dir))
			v.Was = &was
			held, err := Holders(v)
			if err != nil || len(held) > 0 {
				t.Errorf("its holders are %v (%v)", held, err)
			}
			fd := check.Must(unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0))(t)
			dirFile := os.NewFile(uintptr(fd), dir)
			user := exec.Command("sleep", "1000")
			user.ExtraFiles = []*os.File{dirFile}
			check.NoError(t, user.Start())
			t.Cleanup(func() { _, _ = user.Process.Kill(), user.Wait() })
			check.NoError(t, dirFile.Close())
			sc := check.Must(Look([]Original{v.Original}, nil))(t)
			defer sc.Close()
			if users := sc.Users(false); len(users) != 1 || users[0].PID != user.Process.Pid {
				t.Errorf("mounted, its users are %v", users)
			}
			check.NoError(t, unix.Unmount(dir, unix.MNT_DETACH))
			if users := check.Must(Open(v))(t); len(users) != 1 || users[0].PID != user.Process.Pid {
				t.Errorf("unmounted, its users are %v", users)
			}
		})
	}
}

func TestAnswers(t *testing.T) {
	dir := tempDir(t)
	check.NoError(t, Answers(dir))
	hungfs.Mount(t, dir, 0)
	if err := Answers(dir); !errors.Is(err, bounded.ErrNoAnswer) {
		t.Errorf("one that hangs: %v", err)
	}
	check.NoError(t, Answers(os.TempDir()))
	if err := unix.Unmount(dir, unix.MNT_FORCE); err != nil && !errors.Is(err, unix.EBUSY) {
		t.Fatal(err)
	}
	check.Eventually(t, "an answer after it was aborted", func() bool { return !errors.Is(Answers(dir), bounded.ErrNoAnswer) })
}
