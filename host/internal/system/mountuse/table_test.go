package mountuse

import (
	"os"
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
