package mountuse

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/testbin"
)

// TestWatch mounts and unmounts many times: each change is seen.
func TestWatch(t *testing.T) {
	testbin.RequireRoot(t, "changes of the mount table")
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	seen, ended := make(chan bool), make(chan error, 1)
	go func() {
		ended <- Watch(ctx, func(all []*mountinfo.Info) {
			select {
			case seen <- slices.ContainsFunc(all, func(m *mountinfo.Info) bool { return m.Mountpoint == dir }):
			case <-ctx.Done():
			}
		})
	}()
	await := func(want bool) {
		t.Helper()
		late := time.After(30 * time.Second)
		for {
			select {
			case is := <-seen:
				if is == want {
					return
				}
			case <-late:
				t.Fatalf("a change was not seen: mounted %t", want)
			}
		}
	}
	for range 200 {
		await(false)
		if err := unix.Mount("watched", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		await(true)
		if err := unix.Unmount(dir, 0); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
