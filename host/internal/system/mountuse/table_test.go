package mountuse

import (
	"os"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"

	"github.com/pannier/pannier/internal/procfs"
	"github.com/pannier/pannier/test/lib/check"
)

func TestReadOwnMounts(t *testing.T) {
	self := check.Must(Read(Self))(t)
	byID := check.Must(Read(procfs.Dir(os.Getpid())))(t)
	if len(self) == 0 || len(self) != len(byID) || self[0].ID != byID[0].ID {
		t.Errorf("%d mounts by %s, %d by the process's number", len(self), Self, len(byID))
	}
	if table, err := Read(procfs.Dir(1 << 30)); !os.IsNotExist(err) {
		t.Errorf("a process that does not exist: %v, %v", table, err)
	}
}

func TestShows(t *testing.T) {
	original := &mountinfo.Info{Major: 8, Minor: 1, Root: "/vol"}
	for _, c := range []struct {
		m    mountinfo.Info
		want bool
	}{
		{mountinfo.Info{Major: 8, Minor: 1, Root: "/vol"}, true},
		{mountinfo.Info{Major: 8, Minor: 1, Root: "/vol/part"}, true},
		{mountinfo.Info{Major: 8, Minor: 1, Root: "/volume"}, false},
		{mountinfo.Info{Major: 8, Minor: 1, Root: "/"}, false},
		{mountinfo.Info{Major: 8, Minor: 2, Root: "/vol"}, false},
	} {
		if got := Shows(&c.m, original); got != c.want {
			t.Errorf("%d:%d %s: got %v", c.m.Major, c.m.Minor, c.m.Root, got)
		}
	}
	if !Within("/a", "/") || !Within("/", "/") {
		t.Error("everything is within /")
	}
}

// Whoever mounts something chooses these names. The kernel escapes blanks, tabs, newlines and backslashes, and nothing
// else.
func FuzzMountTable(f *testing.F) {
	f.Add("/of\ra\u00a0folder", "/at\x85", "no\tne \\040", "rw - ext4")
	f.Fuzz(func(t *testing.T, root, point, source, fsType string) {
		escape := strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`).Replace
		if strings.Contains(root+point+source+fsType, "\x00") || source == "" || fsType == "" || len(root+point+source+fsType) > 4096 {
			t.Skip("the kernel has no such names")
		}
		dir := t.TempDir()
		line := "36 35 98:7 " + escape("/"+root) + " " + escape("/"+point) + " rw,noatime shared:1 master:2 - " + escape(fsType) + " " +
			escape(source) + " ro,errors=continue\n"
		check.NoError(t, os.WriteFile(dir+"/mountinfo", []byte(line+line), 0o600))
		table := check.Must(Read(dir))(t)
		want := mountinfo.Info{
			ID: 36, Parent: 35, Major: 98, Minor: 7, Root: "/" + root, Mountpoint: "/" + point, Options: "rw,noatime",
			Optional: "shared:1 master:2", FSType: fsType, Source: source, VFSOptions: "ro,errors=continue",
		}
		if len(table) != 2 || *table[0] != want || *table[1] != want {
			t.Errorf("%q is read as %+v", line, table)
		}
	})
}

// Two folders of one file system, such as two volumes of one NFS export, have one device number.
func TestSameMount(t *testing.T) {
	was := Identity{Device: "0:51", FSType: "nfs4", Source: "server:/export", Root: "/vol"}
	for name, c := range map[string]struct {
		change func(i *Identity)
		want   bool
	}{
		"the mount itself":        {func(*Identity) {}, true},
		"mounted by another name": {func(i *Identity) { i.Source = "192.0.2.1:/export" }, true},
		"another folder":          {func(i *Identity) { i.Root = "/volume" }, false},
		"another file system":     {func(i *Identity) { i.Device = "0:52" }, false},
		"another type":            {func(i *Identity) { i.FSType = "tmpfs" }, false},
	} {
		is := was
		c.change(&is)
		if was.Same(is) != c.want {
			t.Errorf("%s: %+v", name, is)
		}
	}
}
