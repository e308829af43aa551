package trusted_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pannier/pannier/internal/trusted"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

const stranger = 65534

// tree makes dir/a/b/file, and returns dir, without links.
func tree(t *testing.T) string {
	t.Helper()
	testbin.RequireRoot(t, "files of another user")
	dir, err := filepath.EvalSymlinks(t.TempDir())
	check.NoError(t, err)
	check.NoError(t, os.MkdirAll(dir+"/a/b", 0o755))
	check.NoError(t, os.WriteFile(dir+"/a/b/file", nil, 0o755))
	return dir
}

func TestWhoCouldReplaceAFile(t *testing.T) {
	t.Setenv("SUDO_UID", "")
	chmod := func(mode os.FileMode, path string) func(dir string) error {
		return func(dir string) error { return os.Chmod(dir+path, mode) }
	}
	chown := func(path string) func(dir string) error {
		return func(dir string) error { return os.Lchown(dir+path, stranger, stranger) }
	}
	for name, tc := range map[string]struct {
		change func(dir string) error
		open   string // the path below dir, without it a/b/file
		at     string // what others can change; empty: nothing
		run    string // the command
	}{
		"nobody":                    {change: func(string) error { return nil }},
		"the group may write":       {change: chmod(0o775, "/a/b/file"), at: "/a/b/file", run: "chmod go-w"},
		"everyone may write":        {change: chmod(0o757, "/a/b/file"), at: "/a/b/file", run: "chmod go-w"},
		"it is a stranger's":        {change: chown("/a/b/file"), at: "/a/b/file", run: "chown -h root"},
		"everyone may replace":      {change: chmod(0o777, "/a/b"), at: "/a/b", run: "chmod go-w"},
		"a parent may be replaced":  {change: chmod(0o777, "/a"), at: "/a", run: "chmod go-w"},
		"a parent is a stranger's":  {change: chown("/a"), at: "/a", run: "chown -h root"},
		"a sticky parent":           {change: chmod(0o777|os.ModeSticky, "/a")},
		"a sticky directory":        {change: chmod(0o777|os.ModeSticky, "/a/b")},
		"a group's sticky":          {change: chmod(0o775|os.ModeSticky, "/a/b")},
		"a stranger's link":         {open: "/link", at: "/link", run: "chown -h root", change: link("a/b/file", stranger)},
		"root's link":               {open: "/link", change: link("a/b/file", 0)},
		"a link with dots":          {open: "/link", change: link("./a/../a/b/file", 0)},
		"a link to an open parent":  {open: "/link", at: "/a", run: "chmod go-w", change: both(link("a/b/file", 0), chmod(0o777, "/a"))},
		"a link of an open parent":  {open: "/a/link", at: "/a", run: "chmod go-w", change: both(at("/a/link", "b/file"), chmod(0o777, "/a"))},
		"a link among the parents":  {open: "/link/b/file", change: link("a", 0)},
		"an absolute link":          {open: "/link", change: func(dir string) error { return os.Symlink(dir+"/a/b/file", dir+"/link") }},
		"a link to a stranger's":    {open: "/link/b/file", at: "/a/b", run: "chown -h root", change: both(link("a", 0), chown("/a/b"))},
		"two links, one by another": {open: "/two", change: both(link("a/b/file", 0), at("/two", "link"))},
	} {
		t.Run(name, func(t *testing.T) {
			dir := tree(t)
			check.NoError(t, tc.change(dir))
			if tc.open == "" {
				tc.open = "/a/b/file"
			}
			err := trusted.File(dir + tc.open)
			refused := (*trusted.Error)(nil)
			switch {
			case tc.at == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tc.at != "" && (!errors.As(err, &refused) || refused.At != dir+tc.at ||
				refused.Command != tc.run+" "+dir+tc.at || !strings.Contains(err.Error(), refused.Command) ||
				!strings.Contains(err.Error(), dir+tc.open)):
				t.Errorf("got %v, want that %s is to be changed by %s", err, tc.at, tc.run)
			}
		})
	}
}

func at(path, to string) func(dir string) error {
	return func(dir string) error { return os.Symlink(to, dir+path) }
}

func link(to string, owner int) func(dir string) error {
	return func(dir string) error {
		return errors.Join(os.Symlink(to, dir+"/link"), os.Lchown(dir+"/link", owner, owner))
	}
}

func both(first, then func(dir string) error) func(dir string) error {
	return func(dir string) error { return errors.Join(first(dir), then(dir)) }
}

// All entries of a directory are used, so others may not add one, though they could replace none.
func TestEntriesOfADirectory(t *testing.T) {
	dir := tree(t)
	check.NoError(t, trusted.Dir(dir+"/a"))
	check.NoError(t, os.Chmod(dir+"/a", 0o777|os.ModeSticky))
	if err := trusted.Dir(dir + "/a"); err == nil || !strings.Contains(err.Error(), "chmod go-w") {
		t.Errorf("a sticky directory: %v", err)
	}
	check.NoError(t, os.Symlink(".", dir+"/a/here"))
	if err := trusted.Dir(dir + "/a/here"); err == nil {
		t.Error("a sticky directory by a link is accepted")
	}
	check.NoError(t, trusted.Dir(dir+"/a/b"))
	check.NoError(t, trusted.File(dir+"/a/b/file"))
}

// Nothing is made where another user can decide what a path leads to.
func TestNothingIsMadeForOthers(t *testing.T) {
	t.Setenv("SUDO_UID", "")
	for name, tc := range map[string]struct {
		change func(dir string) error
		path   string
		made   bool
	}{
		"root's own":            {func(string) error { return nil }, "/a/b/c/d", true},
		"in a sticky directory": {func(dir string) error { return os.Chmod(dir+"/a", 0o777|os.ModeSticky) }, "/a/c/d", true},
		"by root's link":        {link("a", 0), "/link/c", true},
		"in a stranger's":       {func(dir string) error { return os.Chown(dir+"/a", stranger, stranger) }, "/a/c/d", false},
		"in everyone's":         {func(dir string) error { return os.Chmod(dir+"/a", 0o777) }, "/a/c", false},
		"by a stranger's link":  {link("a", stranger), "/link/c", false},
		"in a stranger's directory of a sticky one": {
			func(dir string) error {
				return errors.Join(os.Chmod(dir+"/a", 0o777|os.ModeSticky), os.Chown(dir+"/a/b", stranger, stranger))
			}, "/a/b/c", false,
		},
		"by a link to nothing": {link("nothing", 0), "/link/c", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := tree(t)
			check.NoError(t, tc.change(dir))
			err := trusted.MkdirAll(dir+tc.path, 0o700)
			_, missing := os.Stat(dir + tc.path)
			if (err == nil) != tc.made || (missing == nil) != tc.made {
				t.Errorf("made: %t, %v; want %t", missing == nil, err, tc.made)
			}
		})
	}
}

// Who became root by sudo owns the files that an agent is tried out with.
func TestWhoCalledSudo(t *testing.T) {
	dir := tree(t)
	check.NoError(t, os.Chown(dir+"/a", 1000, 1000))
	t.Setenv("SUDO_UID", "1000")
	check.NoError(t, trusted.File(dir+"/a/b/file"))
	t.Setenv("SUDO_UID", "1001")
	if err := trusted.File(dir + "/a/b/file"); err == nil {
		t.Error("another user's directory is accepted")
	}
}

func TestWhatCannotBeLookedAt(t *testing.T) {
	dir := tree(t)
	if err := trusted.File(dir + "/a/none/file"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := trusted.File("a/b"); err == nil {
		t.Error("a relative path is accepted")
	}
	check.NoError(t, os.Symlink("loop", dir+"/loop"))
	if err := trusted.File(dir + "/loop"); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("a loop of links: %v", err)
	}
	if err := trusted.File(dir + "/a/b/file/more"); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("a file as a directory: %v", err)
	}
}
