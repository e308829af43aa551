package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/faultydriver"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// bridge returns csi-bridge from the host's status.
func bridge(h *testhost.Host) (*hostv1.Plugin, error) {
	s, err := h.Status()
	if err != nil {
		return nil, err
	}
	for _, p := range s.GetPlugins() {
		if p.GetName() == "csi-bridge" {
			return p, nil
		}
	}
	return nil, errors.New("there is no csi-bridge")
}

// putBridge replaces csi-bridge's file, as an operator would, and returns the new checksum.
func putBridge(t *testing.T, h *testhost.Host, data []byte) string {
	t.Helper()
	path := filepath.Join(h.PluginDir, "csi-bridge")
	err := os.WriteFile(path+".tmp", data, 0o755)
	if err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// otherBridge returns a different binary of csi-bridge.
func otherBridge(t *testing.T, h *testhost.Host) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(h.PluginDir, "csi-bridge"))
	if err != nil {
		t.Fatal(err)
	}
	return append(data, 0)
}

// swapBridge installs a different binary of csi-bridge and waits until it serves.
func swapBridge(t *testing.T, h *testhost.Host) {
	t.Helper()
	sum := putBridge(t, h, otherBridge(t, h))
	h.Eventually("the new binary serves", func() error {
		p, err := bridge(h)
		if err == nil && p.GetSha256() != sum {
			err = fmt.Errorf("it is %v", p)
		}
		return err
	})
}

// drained waits until the old processes of csi-bridge are gone.
func drained(t *testing.T, h *testhost.Host) {
	t.Helper()
	h.Eventually("one process of csi-bridge is left", func() error {
		p, err := bridge(h)
		if err != nil {
			return err
		}
		if all := bridges(t, h); p.GetDraining() > 0 || len(all) != 1 || all[0] != fmt.Sprint(p.GetPid()) {
			return fmt.Errorf("processes %q, but the host reports %v", all, p)
		}
		return nil
	})
}

// bridges returns the processes of csi-bridge that run from the host's copies.
func bridges(t *testing.T, h *testhost.Host) (pids []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		exe, err := os.Readlink(path)
		if err == nil && strings.HasPrefix(exe, h.Path("data/plugins")) && filepath.Base(exe) == "csi-bridge" {
			pids = append(pids, filepath.Base(filepath.Dir(path)))
		}
	}
	return pids
}

// csi-bridge is swapped while the driver works on each call of a start and of a stop: the call
// completes in the old process, and later calls are made by the new one.
func TestSwapInTheMiddleOfACall(t *testing.T) {
	t.Parallel()
	inEachCall(t, faultydriver.Until, 1, func(t *testing.T, h *testhost.Host) {
		swapBridge(t, h)
		if p, err := bridge(h); err != nil || p.GetDraining() != 1 || len(p.GetSwaps()) != 1 ||
			p.GetSwaps()[0].GetCarried() < 1 {
			t.Errorf("in the middle of the call: %v, %v", p, err)
		}
	})
}

// Before a swap the host compares the driver's description. A driver that is down has none, which must not
// prevent the swap.
func TestSwapWhileTheDriverIsDown(t *testing.T) {
	t.Parallel()
	h, d, id := faulty(t)
	volume(h, id, "data", "single-node-writer", "")
	healthy := func(want bool) {
		h.Eventually(fmt.Sprintf("the driver's health is %v", want), func() error {
			s, err := h.Status()
			if err == nil && s.GetDrivers()[0].GetHealthy() != want {
				err = fmt.Errorf("it is %v", s.GetDrivers()[0])
			}
			return err
		})
	}
	d.Stop()
	healthy(false)
	swapBridge(t, h)
	d.Restart()
	healthy(true)
	spec := workload(h, "w", "data", "")
	h.Run("workload", "start", spec)
	h.Run("workload", "stop", spec)
	drained(t, h)
	h.NothingInUse()
}

// A binary that is not csi-bridge never takes over. Workloads are undisturbed, and the status reports why it
// was refused.
func TestBadBinaryIsRefused(t *testing.T) {
	t.Parallel()
	h, _, id := faulty(t)
	volume(h, id, "data", "single-node-writer", "")
	spec := workload(h, "w", "data", "")
	before, err := bridge(h)
	if err != nil {
		t.Fatal(err)
	}
	good := otherBridge(t, h)
	another, err := os.ReadFile(testbin.Build(t, "plugins/sids"))
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]struct {
		data []byte
		why  string
	}{
		"half of it":                  {good[:len(good)/2], "incomplete"},
		"a plugin of another kind":    {another, "kind"},
		"a program that is no plugin": {[]byte("#!/bin/sh\necho hello\n"), "handshake"},
		"nothing":                     {nil, ""},
	} {
		sum := putBridge(t, h, bad.data)
		h.Run("workload", "start", spec)
		h.Eventually(name+" is refused", func() error {
			p, err := bridge(h)
			if err != nil {
				return err
			}
			why := p.GetRefused()[sum]
			if name == "half of it" { // it is not even run
				why = p.GetFileProblem()
			}
			if why == "" || !strings.Contains(why, bad.why) {
				return fmt.Errorf("refused are %v, and the file's problem is %q", p.GetRefused(), p.GetFileProblem())
			}
			if p.GetPid() != before.GetPid() || p.GetState() != "running" {
				t.Fatalf("%s took over: %v", name, p)
			}
			return nil
		})
		h.Run("workload", "stop", spec)
	}
	putBridge(t, h, good)
	h.Eventually("a good one takes over", func() error {
		p, err := bridge(h)
		if err == nil && p.GetPid() == before.GetPid() {
			err = fmt.Errorf("it is %v", p)
		}
		return err
	})
	drained(t, h)
	h.NothingInUse()
}

// The agent is killed at each instant of a swap, while a workload runs. The next agent runs the new binary in
// a single process, and the workload is not affected.
func TestHostIsKilledInTheMiddleOfASwap(t *testing.T) {
	t.Parallel()
	agent := testbin.BuildTags(t, pannierAgent, "failpoint")
	for _, point := range []string{"up", "recorded", "moved", "drained"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			h := testhost.New(t, testhost.LocalDriver(t))
			h.Agent = agent
			h.Env = append(h.Env, "PANNIER_FAILPOINT="+h.Path("crash"))
			h.Start()
			volume(h, drivers[0], "data", "single-node-writer", "")
			spec := workload(h, "w", "data", "")
			h.Run("workload", "start", spec)
			mounted := h.Mounts()
			h.Write("crash", "swap:"+point+"\n")
			sum := putBridge(t, h, otherBridge(t, h))
			h.AwaitEnd()
			h.Start()
			h.Eventually("the new binary serves", func() error {
				p, err := bridge(h)
				if err == nil && p.GetSha256() != sum {
					err = fmt.Errorf("it is %v", p)
				}
				return err
			})
			drained(t, h)
			if now := h.Mounts(); len(mounted) == 0 || strings.Join(now, "\n") != strings.Join(mounted, "\n") {
				t.Errorf("the mounts changed from %q to %q", mounted, now)
			}
			h.Run("workload", "stop", spec)
			h.NothingInUse()
		})
	}
}
