package hostservices

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

// A front door's socket may belong to a user, who may replace it in a sticky directory by a link to a file of root:
// that file gets neither the socket's owner nor its mode.
func TestSocketThatItsOwnerHasReplaced(t *testing.T) {
	testbin.RequireRoot(t, "a socket of another user")
	const nobody = 65534
	top := t.TempDir()
	dir, victim := filepath.Join(top, "shared"), filepath.Join(top, "shadow")
	check.NoError(t, errors.Join(os.Chmod(filepath.Dir(top), 0o755), os.Chmod(top, 0o755), os.Mkdir(dir, 0o700),
		os.Chown(dir, 0, nobody), os.Chmod(dir, 0o770|os.ModeSticky), os.WriteFile(victim, nil, 0o600)))
	s := Socket{Name: "api", Address: "unix://" + filepath.Join(dir, "s"), Mode: 0o666, Owner: "65534"}
	file, err := s.listen(t.Context())
	check.NoError(t, err)
	defer file.Close()
	var st unix.Stat_t
	if check.NoError(t, unix.Lstat(s.path(), &st)); st.Uid != nobody || st.Mode != unix.S_IFSOCK|0o666 {
		t.Fatalf("the socket is of user %d, mode %#o", st.Uid, st.Mode)
	}
	replace := exec.Command("ln", "-sfn", victim, s.path())
	replace.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if out, err := replace.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	err = s.permit()
	if check.NoError(t, unix.Lstat(victim, &st)); err == nil || st.Uid != 0 || st.Mode != unix.S_IFREG|0o600 {
		t.Errorf("%v; root's file is of user %d, mode %#o", err, st.Uid, st.Mode)
	}
}
