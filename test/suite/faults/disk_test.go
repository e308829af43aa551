package faults

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
)

// TestLeaderWhoseDiskHangs suspends the disk of the leader. While it hangs, the others elect another leader, and
// commands are committed, those too that the first leader had accepted. Then it is a follower that catches up.
func TestLeaderWhoseDiskHangs(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t, testcluster.Options{Servers: 3, Nodes: 1, ServerConfig: patient})
	disks := map[*testhost.Host]*testhost.Disk{}
	for _, h := range c.Hosts {
		if strings.HasPrefix(h.Name, "server-") {
			disks[h] = h.NewDisk(t, 512<<20)
		}
		h.Begin()
	}
	for _, h := range c.Hosts {
		h.AwaitReady()
		h.AwaitDrivers()
	}
	n := c.Host("node-1")
	c.Volume(n, "before", "single-node-writer")
	hangs := c.Leader()
	thaw := disks[hangs].Freeze()
	bounded(t, n, "node", "eligibility", "-disable", n.Name) // it waits in the first leader's log, and is repeated
	if now := c.Leader(); now == hangs {
		t.Errorf("%s leads, whose disk hangs", hangs.Name)
	}
	bounded(t, n, "node", "eligibility", "-enable", n.Name)
	hangs.Eventually("it says that its disk hangs", func() error { return says(hangs, "the ledger's disk hangs") })
	thaw()
	c.Volume(n, "after", "single-node-writer")
	hangs.Eventually("it has caught up", func() error {
		if r := hangs.Try("volume", "status", "-stale", "after"); r.Code != 0 {
			return fmt.Errorf("%s%s", r.Stdout, r.Stderr)
		}
		return nil
	})
	hangs.Eventually("it is well again", func() error {
		s, err := hangs.Status()
		if err == nil && !s.GetReady() {
			err = errors.New(s.GetMessage())
		}
		return err
	})
}

// bounded runs a command that must not wait for the disk.
func bounded(t *testing.T, h *testhost.Host, args ...string) {
	t.Helper()
	cmd := h.Command(args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waits := time.AfterFunc(testhost.Wait, func() { _ = cmd.Process.Kill() })
	defer waits.Stop()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("pannier %v: %v: %s", args, err, out.String())
	}
}

// TestOnlyDiskHangs suspends the disk of a single host. A command waits, and the host says for what. TestAlerts has the
// metric.
func TestOnlyDiskHangs(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t))
	disk := h.NewDisk(t, 512<<20)
	h.Start()
	thaw := disk.Freeze()
	waits := make(chan testhost.Result, 1)
	go func() { waits <- h.Try("node", "eligibility", "-disable", h.Name) }()
	h.Eventually("it says that its disk hangs", func() error { return says(h, "the ledger's disk hangs") })
	thaw()
	if r := <-waits; r.Code != 0 {
		t.Errorf("the command that waited: %s", r.Stderr)
	}
	h.AwaitReady()
}

// says checks that a host is not ready, and for which reason.
func says(h *testhost.Host, reason string) error {
	s, err := h.Status()
	if err == nil && (s.GetReady() || !strings.Contains(s.GetMessage(), reason)) {
		err = fmt.Errorf("it is ready: %t: %s", s.GetReady(), s.GetMessage())
	}
	return err
}
