package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pannier/pannier/internal/trusted"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/powerloss"
)

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(t.Context(), dir)
	check.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func nothing(*os.File) error { return nil }

func TestVolume(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "a", "data"))
	want := Volume{
		ID: VolumeID("v"), Name: "v", Parameters: map[string]string{"fsType": "xfs"},
		Source: Source{SnapshotID: SnapshotID("s")}, CreatedAt: time.Now().UTC(), FSType: "xfs", Capacity: 12345,
	}
	check.NoError(t, s.CreateVolume(want, nothing))
	if err := s.CreateVolume(want, nothing); err == nil {
		t.Error("the same id was created twice")
	}
	got, err := s.Volume(want.ID)
	if err != nil || got.Name != want.Name || got.Capacity != want.Capacity || got.Source != want.Source ||
		!got.CreatedAt.Equal(want.CreatedAt) || got.Parameters["fsType"] != "xfs" {
		t.Errorf("got %+v, %v", got, err)
	}
	got.Formatting = "xfs"
	check.NoError(t, s.UpdateVolume(got))
	check.NoError(t, errors.Join(s.Grow(want.ID, 20000), s.Grow(want.ID, 10000)))
	if got, err = s.Volume(want.ID); err != nil || got.Formatting != "xfs" || got.Capacity != 20000 {
		t.Errorf("got %+v, %v", got, err)
	}
	if ids, err := s.VolumeIDs(); err != nil || len(ids) != 1 {
		t.Errorf("got %v, %v", ids, err)
	}
	if err := errors.Join(s.DeleteVolume(want.ID), s.DeleteVolume(want.ID)); err != nil {
		t.Error(err)
	}
	if _, err := s.Volume(want.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

// A user who has made the data directory before the driver, or can write above it, could exchange volumes' images, and
// have directories made elsewhere.
func TestDataDirectoryThatAUserHasPrepared(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not covered: directories of other users need root")
	}
	t.Setenv("SUDO_UID", "")
	const nobody = 65534
	for name, prepare := range map[string]func(dir string) (data string, err error){
		"a user's": func(dir string) (string, error) {
			return dir + "/data", errors.Join(os.Mkdir(dir+"/data", 0o755), os.Chown(dir+"/data", nobody, nobody))
		},
		"in a user's": func(dir string) (string, error) {
			return dir + "/home/data", errors.Join(os.Mkdir(dir+"/home", 0o755), os.Chown(dir+"/home", nobody, nobody))
		},
		"a user's link in a sticky directory": func(dir string) (string, error) {
			return dir + "/tmp/data", errors.Join(os.Mkdir(dir+"/etc", 0o755), os.Mkdir(dir+"/tmp", 0o700),
				os.Chmod(dir+"/tmp", 0o777|os.ModeSticky), os.Symlink(dir+"/etc", dir+"/tmp/data"),
				os.Lchown(dir+"/tmp/data", nobody, nobody))
		},
		"with a user's volumes": func(dir string) (string, error) {
			return dir + "/data", errors.Join(os.Mkdir(dir+"/data", 0o755), os.Mkdir(dir+"/data/volumes", 0o755),
				os.Chown(dir+"/data/volumes", nobody, nobody))
		},
	} {
		dir := t.TempDir()
		data, err := prepare(dir)
		check.NoError(t, err)
		s, err := Open(t.Context(), data)
		if err == nil {
			t.Errorf("%s: it is used", name)
			s.Close()
		} else if !errors.As(err, new(*trusted.Error)) {
			t.Errorf("%s: %v", name, err)
		}
		if made, _ := filepath.Glob(dir + "/etc/*"); len(made) > 0 {
			t.Errorf("%s: made %v", name, made)
		}
	}
}

// After a loss of power a volume has the record and the data that it was last given.
func TestLossOfPower(t *testing.T) {
	for _, fstype := range powerloss.FileSystems {
		t.Run(fstype, func(t *testing.T) {
			dir, cut := powerloss.Disk(t, fstype)
			write := func(text string) func(*os.File) error {
				return func(f *os.File) error {
					_, err := f.WriteString(text)
					return err
				}
			}
			v := Volume{ID: VolumeID("v"), Name: "v", Capacity: 5}
			for _, step := range []struct {
				do         func(s *Store) error
				data, name string
			}{
				{func(s *Store) error { return s.CreateVolume(v, write("first")) }, "first", "v"},
				{func(s *Store) error { return s.volumes.replaceImage(v.ID, write("second")) }, "second", "v"},
				{func(s *Store) error { v.Name = "w"; return s.UpdateVolume(v) }, "second", "w"},
			} {
				s := open(t, dir)
				check.NoError(t, step.do(s))
				s.Close()
				cut()
				s = open(t, dir)
				got, err := s.Volume(v.ID)
				data, readErr := os.ReadFile(s.volumes.image(v.ID))
				s.Close()
				if err != nil || readErr != nil || got.Name != step.name || string(data) != step.data {
					t.Errorf("it is %+v with %q, %v, %v, want %+v", got, data, err, readErr, step)
				}
			}
		})
	}
}

// TestFailedCreateLeavesNothing fails while the image is written.
func TestFailedCreateLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	broken := errors.New("broken")
	v := Volume{ID: VolumeID("v"), Name: "v"}
	if err := s.CreateVolume(v, func(*os.File) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	check.NoError(t, s.CreateVolume(v, nothing))
	if err := s.ReplaceImage(v.ID, func(f *os.File) error { f.WriteString("half"); return broken }); !errors.Is(err,
		broken) {
		t.Errorf("got %v", err)
	}
	if data, err := os.ReadFile(s.Image(v.ID)); err != nil || len(data) != 0 {
		t.Errorf("the image was changed to %q, %v", data, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "tmp", "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestOpenSweepsAndLocks(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	check.NoError(t, os.MkdirAll(filepath.Join(dir, "tmp", "vol-x", "y"), 0o700))
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, ErrLocked)
	defer cancel()
	if _, err := Open(ctx, dir); !errors.Is(err, ErrLocked) {
		t.Errorf("a second Open: %v", err)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	open(t, dir)
	if left, _ := filepath.Glob(filepath.Join(dir, "tmp", "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestIDsAreNotPaths(t *testing.T) {
	s := open(t, t.TempDir())
	for _, id := range []string{
		"", ".", "..", "../volumes", "vol-", "vol-../../../../../../../../../../etc",
		"snap-" + VolumeID("v")[4:], VolumeID("v") + "0",
	} {
		if _, err := s.Volume(id); !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: %v", id, err)
		}
		if err := s.DeleteVolume(id); err != nil {
			t.Errorf("delete %q: %v", id, err)
		}
		if IsVolumeID(id) {
			t.Errorf("%q is a volume id", id)
		}
	}
	if !IsVolumeID(VolumeID("v")) || !IsSnapshotID(SnapshotID("v")) || VolumeID("v") == VolumeID("w") {
		t.Error("ids are not as they should be")
	}
}

// TestSymbolicLink opens the data directory through a link: the kernel's tables contain the real path.
func TestSymbolicLink(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	check.NoError(t, errors.Join(os.Mkdir(filepath.Join(dir, "data"), 0o700), os.Symlink("data", link)))
	if got, want := open(t, link).Dir(), filepath.Join(dir, "data"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
