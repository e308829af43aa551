package secretsdir

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/system/mountuse"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testns"
)

func TestMain(m *testing.M) { testns.Main(m, 0) }

const (
	alice = 64001
	bob   = 64002
)

var web = Place{"default", "w", "web"}

// newDir returns a directory whose parents everyone can traverse.
func newDir(t *testing.T) *Dir {
	t.Helper()
	testbin.RequireRoot(t, "a tmpfs and files of other users")
	top, err := os.MkdirTemp("", "secretsdir")
	check.NoError(t, err)
	check.NoError(t, os.Chmod(top, 0o755))
	path := filepath.Join(top, "secrets")
	t.Cleanup(func() {
		if err := New(path).within(func(root *os.Root) error {
			return (&sweep{dir: New(path), root: root, keep: func(Place) bool { return false }}).folder(nil)
		}); err != nil {
			t.Error(err)
		}
		for unix.Unmount(path, unix.MNT_DETACH) == nil {
		}
		if err := os.RemoveAll(top); err != nil {
			t.Error(err)
		}
	})
	return New(path)
}

// as runs a command as a user and returns what it printed.
func as(uid int, command ...string) (string, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// A user who owns the directory, or one above it, could exchange the files of other users' workloads.
func TestDirectoryThatAUserHasPrepared(t *testing.T) {
	for name, prepare := range map[string]func(path string) error{
		"a user's, with the mark": func(path string) error {
			return errors.Join(os.Mkdir(path, 0o711), unix.Mount(source, path, "tmpfs", 0, ""),
				os.WriteFile(filepath.Join(path, mark), nil, 0o400), os.Chown(path, alice, alice))
		},
		"in a user's": func(path string) error { return os.Chown(filepath.Dir(path), alice, alice) },
		"a user's link": func(path string) error {
			top := filepath.Dir(path)
			return errors.Join(os.Mkdir(top+"/etc", 0o755), os.Symlink(top+"/etc", path), os.Lchown(path, alice, alice),
				os.Chmod(top, 0o777|os.ModeSticky))
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDir(t)
			check.NoError(t, prepare(d.path))
			err := d.Write(web, "si_token", []byte("secret"), bob)
			if err == nil {
				moved := d.path + "/default"
				out, moveErr := as(alice, "mv", moved, moved+"-of-alice")
				t.Errorf("a token is there; its directory can be moved by another user: %t %s", moveErr == nil, out)
			} else if !errors.Is(err, ErrForeign) {
				t.Error(err)
			}
			there, err := mounts.At(filepath.Join(filepath.Dir(d.path), "etc"))
			if err != nil || there != nil {
				t.Errorf("mounted on the host: %v, %v", there, err)
				check.NoError(t, unix.Unmount(there.Path, unix.MNT_DETACH))
			}
		})
	}
}

func TestOnlyItsUserReadsIt(t *testing.T) {
	d := newDir(t)
	before := syscall.Umask(0o077) // as an agent may have it
	t.Cleanup(func() { syscall.Umask(before) })
	check.NoError(t, d.Write(web, "si_token", []byte("secret"), alice))
	check.NoError(t, d.Write(Place{"default", "w", "db"}, "si_token", []byte("other"), bob))
	path := d.Path(web, "si_token")
	if out, err := as(alice, "cat", path); err != nil || out != "secret" {
		t.Errorf("its user reads %q, %v", out, err)
	}
	for _, command := range [][]string{
		{"cat", path},
		{"ls", d.Folder(web)},
		{"ls", d.Workload(web)},
		{"ls", d.path},
		{"touch", d.Workload(web) + "/x"},
	} {
		if out, err := as(bob, command...); err == nil {
			t.Errorf("another user may %q: %q", command, out)
		}
	}
	for path, want := range map[string]fs.FileMode{
		d.path: 0o711, filepath.Dir(d.Workload(web)): 0o711, d.Workload(web): 0o711, d.Folder(web): 0o700, path: 0o400,
	} {
		info, err := os.Lstat(path)
		check.NoError(t, err)
		if info.Mode().Perm() != want {
			t.Errorf("%s is %s, want %s", path, info.Mode(), want)
		}
	}
	m, err := mounts.At(d.path)
	if err != nil || m == nil || m.FSType != "tmpfs" {
		t.Errorf("it is on %v, %v", m, err)
	}
	var st unix.Statfs_t
	check.NoError(t, unix.Statfs(d.path, &st))
	if want := int64(unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC); st.Flags&want != want ||
		int64(st.Blocks)*st.Bsize != 64<<20 {
		t.Errorf("mounted with flags %#x, %d blocks", st.Flags, st.Blocks)
	}
}

func TestWrittenReadReplacedRemoved(t *testing.T) {
	d := newDir(t)
	if _, err := d.Read(web, "si_token", alice); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before anything is there: %v", err)
	}
	check.NoError(t, errors.Join(d.Remove(web), d.RemoveFile(web, "si_token"), d.Close()))
	for _, text := range []string{"first", "second"} {
		check.NoError(t, d.Write(web, "si_token", []byte(text), alice))
		if got, err := d.Read(web, "si_token", alice); err != nil || string(got) != text {
			t.Errorf("read %q, %v", got, err)
		}
	}
	check.NoError(t, d.Write(web, "envoy_bootstrap.json", []byte("{}"), alice))
	other := Place{"default", "w2", "web"}
	check.NoError(t, d.Write(other, "si_token", nil, alice))
	check.NoError(t, d.RemoveFile(web, "si_token"))
	if _, err := d.Read(web, "si_token", alice); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after it was removed: %v", err)
	}
	check.NoError(t, d.Close())
	if _, err := d.Read(web, "envoy_bootstrap.json", alice); err != nil {
		t.Errorf("a close took what was still there: %v", err)
	}
	check.NoError(t, d.Remove(web))
	if _, err := os.Lstat(d.Workload(web)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the workload's folder is left: %v", err)
	}
	if _, err := d.Read(other, "si_token", alice); err != nil {
		t.Error(err)
	}
	check.NoError(t, d.Remove(other))
	for range 2 {
		check.NoError(t, d.Close())
	}
	if m, err := mounts.At(d.path); m != nil || err != nil {
		t.Errorf("still mounted: %v, %v", m, err)
	}
	check.NoError(t, d.Write(web, "si_token", nil, alice)) // and again
}

func TestInvalidNamesAreRefused(t *testing.T) {
	d := newDir(t)
	for _, p := range []Place{{"..", "w", "s"}, {"n", "", "s"}, {"n", "w", "a/b"}, {"n", ".", "s"}} {
		if err := errors.Join(d.Write(p, "f", nil, alice), nil); err == nil {
			t.Errorf("%+v was taken", p)
		}
		if d.Remove(p) == nil || d.RemoveFile(p, "f") == nil {
			t.Errorf("%+v was removed", p)
		}
	}
	if d.Write(web, "../x", nil, alice) == nil {
		t.Error("a file's name leads elsewhere")
	}
}

// The workload's user, or an intruder, has replaced the file.
func TestForeignFilesAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(t *testing.T, d *Dir, victim string) error
		want  string
	}{
		"a link": {
			func(_ *testing.T, d *Dir, v string) error { return os.Symlink(v, d.Path(web, "si_token")) },
			"it is a link",
		},
		"a hard link": {
			func(_ *testing.T, d *Dir, v string) error { return os.Link(v, d.Path(web, "si_token")) },
			"it has 2 hard links",
		},
		"a folder": {
			func(_ *testing.T, d *Dir, _ string) error { return os.Mkdir(d.Path(web, "si_token"), 0o700) },
			"not a regular file",
		},
		"a pipe": {func(_ *testing.T, d *Dir,
			_ string,
		) error {
			return unix.Mkfifo(d.Path(web, "si_token"), 0o400)
		}, "not a regular file"},
		"another's": {
			func(_ *testing.T, d *Dir, _ string) error { return write(d, 0o400, bob) },
			"belongs to uid 64002",
		},
		"readable by others": {
			func(_ *testing.T, d *Dir, _ string) error { return write(d, 0o444, alice) },
			"others may read it",
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDir(t)
			check.NoError(t, d.Write(web, "si_token", []byte("secret"), alice))
			victim := filepath.Join(d.Workload(web), "victim")
			check.NoError(t, os.WriteFile(victim, []byte("precious"), 0o400))
			check.NoError(t, os.Chown(victim, alice, -1))
			check.NoError(t, os.Remove(d.Path(web, "si_token")))
			check.NoError(t, c.spoil(t, d, victim))
			if got, err := d.Read(web, "si_token", alice); !errors.Is(err, ErrForeign) ||
				!strings.Contains(err.Error(), c.want) {
				t.Errorf("read %q, %v", got, err)
			}
			err := d.Write(web, "si_token", []byte("new"), alice)
			if name == "a folder" {
				if err == nil {
					t.Error("a folder was replaced")
				}
				check.NoError(t, os.WriteFile(filepath.Join(d.Path(web, "si_token"), "x"), nil, 0o600))
				check.NoError(t, d.RemoveFile(web, "si_token"))
				err = d.Write(web, "si_token", []byte("new"), alice)
			}
			check.NoError(t, err)
			if got, err := d.Read(web, "si_token", alice); err != nil || string(got) != "new" {
				t.Errorf("read %q, %v", got, err)
			}
			if got, err := os.ReadFile(victim); err != nil || string(got) != "precious" {
				t.Errorf("what the link led to is %q, %v", got, err)
			}
			check.NoError(t, d.Remove(web))
			if _, err := os.Lstat(victim); err != nil {
				t.Error(err)
			}
		})
	}
}

func write(d *Dir, mode fs.FileMode, uid int) error {
	path := d.Path(web, "si_token")
	return errors.Join(os.WriteFile(path, nil, mode), os.Chmod(path, mode), os.Chown(path, uid, -1))
}

// A link in place of a directory is never followed.
func TestLinksAreNotFollowed(t *testing.T) {
	for n := range web.parts() {
		t.Run(web.parts()[n], func(t *testing.T) {
			d := newDir(t)
			check.NoError(t, d.Write(web, "si_token", []byte("secret"), alice))
			elsewhere := filepath.Join(filepath.Dir(d.path), "elsewhere")
			check.NoError(t, os.MkdirAll(filepath.Join(elsewhere, "w", "web"), 0o777))
			check.NoError(t, os.MkdirAll(filepath.Join(elsewhere, "web"), 0o777))
			link := filepath.Join(append([]string{d.path}, web.parts()[:n+1]...)...)
			check.NoError(t, d.Remove(web))
			check.NoError(t, os.MkdirAll(filepath.Dir(link), 0o700))
			check.NoError(t, os.Symlink(elsewhere, link))
			if err := d.Write(web, "si_token", []byte("secret"), alice); !errors.Is(err, ErrForeign) {
				t.Errorf("written: %v", err)
			}
			if _, err := d.Read(web, "si_token", alice); !errors.Is(err, ErrForeign) {
				t.Errorf("read: %v", err)
			}
			_ = d.Remove(web)
			var found []string
			check.NoError(t, filepath.WalkDir(elsewhere, func(path string, e fs.DirEntry, err error) error {
				if err == nil && !e.IsDir() {
					found = append(found, path)
				}
				return err
			}))
			if _, err := os.Stat(filepath.Join(elsewhere, "w", "web")); err != nil || len(found) > 0 {
				t.Errorf("it was passed: %q, %v", found, err)
			}
		})
	}
}

func TestAFolderOfAnotherUser(t *testing.T) {
	d := newDir(t)
	check.NoError(t, d.Write(web, "si_token", nil, alice))
	if err := d.Write(web, "si_token", nil, bob); !errors.Is(err, ErrForeign) ||
		!strings.Contains(err.Error(), "belongs to uid 64001, not to 64002") {
		t.Errorf("got %v", err)
	}
	check.NoError(t, d.Remove(web))
	check.NoError(t, d.Write(web, "si_token", nil, bob))
}

// A workload's user who fills its tmpfs, with bytes or with names, takes no room from other workloads, also where the
// directory is on a tmpfs already. What was there stays; after the workload's end nothing is mounted.
func TestAFullTmpfs(t *testing.T) {
	d := newDir(t)
	other := Place{"default", "other", "web"}
	check.NoError(t, os.Mkdir(d.path, 0o700))
	check.NoError(t, unix.Mount("small", d.path, "tmpfs", 0, "size=64k"))
	check.NoError(t, d.Write(web, "si_token", []byte("old"), alice))
	filler := bytes.Repeat([]byte("x"), 1<<20)
	if err := os.WriteFile(filepath.Join(d.Folder(web), "filler"), filler, 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	err := d.Write(web, "si_token", bytes.Repeat([]byte("y"), 100), alice)
	if !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), d.Path(web, "si_token")) ||
		!strings.Contains(err.Error(), "remove what the workload has written") {
		t.Errorf("got %v", err)
	}
	if err := d.Write(other, "si_token", []byte("another's"), bob); err != nil {
		t.Errorf("another workload: %v", err)
	}
	if got, err := d.Read(web, "si_token", alice); err != nil || string(got) != "old" {
		t.Errorf("what was there is %q, %v", got, err)
	}
	entries, err := os.ReadDir(d.Folder(web))
	if err != nil || len(entries) != 2 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	check.NoError(t, d.Remove(web))
	check.NoError(t, d.Write(web, "si_token", []byte("new"), alice))
	for n := 0; err == nil || !errors.Is(err, unix.ENOSPC); n++ {
		if err = os.WriteFile(filepath.Join(d.Folder(web), fmt.Sprint(n)), nil, 0o600); n > 10_000 {
			t.Fatal("any number of files was made")
		}
	}
	check.NoError(t, New(d.path).Write(other, "si_token", []byte("the next agent's"), bob))
	check.NoError(t, d.Remove(web))
	check.NoError(t, d.Remove(other))
	check.NoError(t, d.Close())
	table, err := mountuse.Read(mountuse.Self)
	check.NoError(t, err)
	for _, m := range table {
		if strings.HasPrefix(m.Mountpoint, d.path+"/") {
			t.Errorf("still mounted: %+v", m)
		}
	}
	if m, err := mounts.At(d.path); m == nil || err != nil {
		t.Error("a tmpfs of the operator's was unmounted")
	}
}

func TestADirectoryOfSomebodyElse(t *testing.T) {
	for _, kind := range []string{"disk", "tmpfs"} {
		t.Run(kind, func(t *testing.T) {
			d := newDir(t)
			check.NoError(t, os.Mkdir(d.path, 0o700))
			if kind == "tmpfs" {
				check.NoError(t, unix.Mount("theirs", d.path, "tmpfs", 0, "size=64k"))
			}
			theirs := filepath.Join(d.path, "theirs")
			check.NoError(t, os.WriteFile(theirs, nil, 0o600))
			for _, err := range []error{d.Mount(), d.Write(web, "si_token", nil, alice)} {
				if !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), `it holds "theirs"`) {
					t.Errorf("got %v", err)
				}
			}
			if removed, err := d.Sweep(func(Place) bool { return false }); err != nil || len(removed) > 0 {
				t.Errorf("swept %q, %v", removed, err)
			}
			if _, err := os.Lstat(theirs); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSweep(t *testing.T) {
	d := newDir(t)
	if removed, err := d.Sweep(nil); removed != nil || err != nil {
		t.Errorf("of nothing: %q, %v", removed, err)
	}
	check.NoError(t, d.Write(web, "si_token", []byte("kept"), alice))
	gone := Place{"other", "w", "web"}
	check.NoError(t, d.Write(gone, "si_token", nil, alice))
	check.NoError(t, d.Write(Place{"default", "w", "gone"}, "si_token", nil, alice))
	check.NoError(t, os.WriteFile(filepath.Join(d.Folder(web), temporary+"x"), nil, 0o400))
	check.NoError(t, os.WriteFile(filepath.Join(d.Folder(web), "the users own"), nil, 0o400))
	precious := filepath.Join(filepath.Dir(d.path), "precious")
	check.NoError(t, os.Mkdir(precious, 0o700))
	check.NoError(t, os.Symlink(precious, filepath.Join(d.Workload(web), "link")))
	removed, err := d.Sweep(func(p Place) bool { return p == web })
	want := []string{"default/w/gone", "default/w/link", "default/w/web/" + temporary + "x", "other/w/web"}
	for n := range want {
		want[n] = filepath.Join(d.path, want[n])
	}
	if slices.Sort(removed); err != nil || !slices.Equal(removed, want) {
		t.Errorf("removed %q, %v; want %q", removed, err, want)
	}
	if got, err := d.Read(web, "si_token", alice); err != nil || string(got) != "kept" {
		t.Errorf("read %q, %v", got, err)
	}
	if _, err := os.Lstat(filepath.Join(d.path, "other")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("empty folders are left")
	}
	if _, err := os.Lstat(precious); err != nil {
		t.Error(err)
	}
}

// Directories that several services share are made and removed concurrently without losing files.
func TestConcurrentUse(t *testing.T) {
	d := newDir(t)
	var wg sync.WaitGroup
	for n := range 8 {
		p := Place{"default", "w", fmt.Sprint("s", n)}
		wg.Go(func() {
			for range 50 {
				if err := d.Write(p, "f", []byte(p.Service), alice); err != nil {
					t.Error(err)
				}
				if got, err := d.Read(p, "f", alice); err != nil || string(got) != p.Service {
					t.Errorf("read %q, %v", got, err)
				}
				if err := d.Remove(p); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
