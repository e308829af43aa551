package dockervolume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// swaps is how often the plugin is swapped under load.
const swaps = 5

// TestSwapsUnderLoad swaps the plugin while containers come and go. No start fails.
func TestSwapsUnderLoad(t *testing.T) {
	t.Parallel()
	r := start(t)
	program, err := os.ReadFile(filepath.Join(r.PluginDir, plugin))
	if err != nil {
		t.Fatal(err)
	}
	var load sync.WaitGroup
	end := make(chan struct{})
	failed, starts := make([]error, 3), make([]int, 3)
	for n := range failed {
		volume := fmt.Sprintf("load-%d", n)
		r.mkvolume(t, volume)
		load.Go(func() {
			for failed[n] == nil {
				select {
				case <-end:
					return
				default:
				}
				out, err := r.Daemon.Try("run", "--rm", "-v", volume+":/data", image, "touch", "/data/file")
				if starts[n]++; err != nil {
					failed[n] = fmt.Errorf("start %d with volume %s: %w: %s", starts[n], volume, err, out)
				}
			}
		})
	}
	for n := range swaps {
		program = append(program, byte(n)) // another binary: data after the end of an executable is ignored
		r.swap(t, program, n+1)
	}
	close(end)
	load.Wait()
	if err := errors.Join(failed...); err != nil {
		t.Errorf("%v\n%s", err, r.LogTail())
	}
	t.Logf("%v containers were started", starts)
	for n := range failed {
		r.awaitFree(t, fmt.Sprintf("load-%d", n))
	}
}

// swap puts another binary of the plugin in place, and waits until it serves and the one before has ended.
func (r *rig) swap(t *testing.T, program []byte, count int) {
	t.Helper()
	was := r.pluginPID(t)
	file := filepath.Join(r.PluginDir, plugin)
	err := os.WriteFile(file+".new", program, 0o755) //nolint:gosec // it is to be run
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.Eventually("another process of the plugin serves, and the one before has ended", func() error {
		s, err := r.Status()
		if err != nil {
			return err
		}
		for _, p := range s.GetPlugins() {
			if p.GetName() != plugin {
				continue
			}
			if len(p.GetSwaps()) < count || p.GetPid() == int64(was) {
				return fmt.Errorf("it has %d swaps", len(p.GetSwaps()))
			}
		}
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", was)); err == nil {
			return fmt.Errorf("process %d still runs", was)
		}
		return nil
	})
}
