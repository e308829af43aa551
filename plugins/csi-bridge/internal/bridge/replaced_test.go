package bridge

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/faultydriver"
)

// An endpoint is led to another process of the driver. New calls go there at once, also while the old one has some
// left, except for a volume of which one is in flight. The connection to the old one ends after its last call, also if
// its caller has given that up.
func TestEndpointIsLedElsewhere(t *testing.T) {
	f := setup(t, brisk, faultydriver.Config{})
	next := faultydriver.Start(t, faultydriver.Config{})
	next.AddVolume("vol-x")
	link := filepath.Join(t.TempDir(), "csi.sock")
	lead := func(to *faultydriver.Driver) {
		t.Helper()
		check.NoError(t, os.Symlink(to.Endpoint()[len("unix://"):], link+".next"))
		check.NoError(t, os.Rename(link+".next", link))
	}
	lead(f.faulty)
	f.driver.Endpoint = "unix://" + link
	release := make(chan struct{})
	f.faulty.Script("NodeStageVolume", faultydriver.Until(release))
	ctx, giveUp := context.WithCancel(t.Context())
	old := inBackground(func() error { return stage(ctx, f) })
	f.faulty.AwaitCalls("NodeStageVolume", 1)
	lead(next)

	_, err := f.bridge.Capacity(t.Context(), f.driver, storage.CapacityRequest{})
	check.NoError(t, err)
	if n, m := len(f.faulty.Calls("GetCapacity")), len(next.Calls("GetCapacity")); n != 0 || m != 1 {
		t.Errorf("%d calls went to the old process, %d to the new one", n, m)
	}
	giveUp()
	if err := await(t, old); err == nil {
		t.Error("the call that was given up has succeeded")
	}
	again := inBackground(func() error { return stage(t.Context(), f) })
	_, err = f.bridge.Capacity(t.Context(), f.driver, storage.CapacityRequest{}) // it could be made meanwhile
	check.NoError(t, err)
	if !connected(t, f.faulty) {
		t.Error("the connection of the call in flight is closed")
	}
	released := time.Now()
	close(release)
	check.NoError(t, await(t, again))
	if calls := next.Calls("NodeStageVolume"); len(calls) != 1 || calls[0].Began.Before(released) {
		t.Errorf("the next call for the volume did not wait for the one in flight, until %s: %+v", released, calls)
	}
	if n := len(f.faulty.Calls("NodeStageVolume")); n != 1 {
		t.Errorf("the call in the old process was made %d times", n)
	}
	check.Eventually(t, "the old process has no connection", func() bool { return !connected(t, f.faulty) })
}

// What is only asked, as a process that is tried, keeps no connection.
func TestAskedConnectionIsClosed(t *testing.T) {
	f := setup(t, brisk, faultydriver.Config{})
	_, err := f.bridge.Probe(t.Context(), f.driver, time.Minute)
	check.NoError(t, err)
	check.Eventually(t, "the process has no connection", func() bool { return !connected(t, f.faulty) })
	_, err = f.bridge.Capacity(t.Context(), f.driver, storage.CapacityRequest{})
	check.NoError(t, err)
	if !connected(t, f.faulty) {
		t.Error("a connection that was called on is not kept")
	}
}

// connected reports whether anybody is connected to a driver (proc(5), /proc/net/unix).
func connected(t *testing.T, d *faultydriver.Driver) bool {
	t.Helper()
	table, err := os.ReadFile("/proc/net/unix")
	check.NoError(t, err)
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if len(f) == 8 && f[5] == "03" && "unix://"+f[7] == d.Endpoint() {
			return true
		}
	}
	return false
}
