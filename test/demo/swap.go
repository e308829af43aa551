package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// bridge is the plugin that the demo swaps. The calls for every volume go through it.
const bridge = "csi-bridge"

// copyPlugins creates a separate plugin directory, in which the demo can replace files.
func (h *host) copyPlugins() error {
	from := filepath.Join(h.bin, "plugins")
	if err := os.Mkdir(h.path("plugins"), 0o755); err != nil {
		return err
	}
	return os.CopyFS(h.path("plugins"), os.DirFS(from))
}

// swapBridge replaces csi-bridge the given number of times by different binaries, and finally by a truncated
// one. Meanwhile workloads with a volume start and stop. Each start and stop makes calls through csi-bridge,
// and all of them must succeed.
func (s *teller) swapBridge(times int) {
	s.do(func() error {
		good, err := os.ReadFile(filepath.Join(s.h.bin, "plugins", bridge))
		if err != nil {
			return err
		}
		others := s.comeAndGo()
		err = s.swaps(good, times)
		done, failed := others()
		if err != nil {
			return err
		}
		fmt.Printf("  %d workloads came and went meanwhile, %d of them failed\n", done, len(failed))
		return errors.Join(failed...)
	})
}

func (s *teller) swaps(good []byte, times int) error {
	built := filepath.Join(s.h.bin, "plugins", bridge)
	for n := range times {
		// Data after the end of an executable is ignored, so this is the same program with a different
		// checksum.
		other := fmt.Sprintln(n)
		err := s.putBridge(fmt.Sprintf("(cat %s; echo %d)", built, n), append(slices.Clip(good), other...))
		if err != nil {
			return err
		}
		if err := s.awaitBridge("the new binary serves", func(p plugin) bool { return swapsOf(p, "") == n+1 }); err != nil {
			return err
		}
	}
	if err := s.putBridge("head -c 1M "+built, good[:1<<20]); err != nil {
		return err
	}
	return s.awaitBridge("the bad binary is refused",
		func(p plugin) bool { return p.FileProblem != "" && p.State == "running" })
}

// badCanary gives half of the calls to a csi-bridge that cannot publish volumes, until the agent has ended it.
// Meanwhile workloads with a volume start and stop. All of them must succeed.
func (s *teller) badCanary() {
	s.do(func() error {
		bad := filepath.Join(s.h.bin, "csi-bridge-failing")
		data, err := os.ReadFile(bad)
		if err == nil {
			err = s.putBridge("cat "+bad, data)
		}
		if err != nil {
			return err
		}
		others := s.comeAndGo()
		s.pannier("plugin", "swap", "-canary", "50%", bridge)
		s.pannier("plugin", "status", bridge)
		err = errors.Join(s.err, s.awaitBridge("the bad canary is ended", func(p plugin) bool { return p.Canary == nil }))
		done, failed := others()
		if err != nil {
			return err
		}
		fmt.Printf("  %d workloads came and went meanwhile, %d of them failed\n", done, len(failed))
		return errors.Join(failed...)
	})
}

// putBridge atomically replaces csi-bridge by data, the output of a command.
func (s *teller) putBridge(command string, data []byte) error {
	path := filepath.Join(s.h.path("plugins"), bridge)
	fmt.Printf("$ %[1]s > %[2]s.tmp && chmod +x %[2]s.tmp && mv %[2]s.tmp %[2]s\n", command, path)
	if err := os.WriteFile(path+".tmp", data, 0o755); err != nil { //nolint:gosec // it is to be run
		return err
	}
	return os.Rename(path+".tmp", path)
}

func (s *teller) awaitBridge(what string, ok func(plugin) bool) error {
	return s.h.wait(s.ctx, what, func() error {
		st, err := s.h.status(s.ctx)
		if err != nil {
			return err
		}
		n := slices.IndexFunc(st.Plugins, func(p plugin) bool { return p.Name == bridge })
		if n < 0 || !ok(st.Plugins[n]) {
			return fmt.Errorf("not yet: %+v", st.Plugins)
		}
		return nil
	})
}

// swapsOf counts a plugin's swaps with the given error.
func swapsOf(p plugin, problem string) (n int) {
	for _, w := range p.Swaps {
		if w.Error == problem {
			n++
		}
	}
	return n
}

// comeAndGo runs one workload after another until end is called, which returns their number and the failures.
func (s *teller) comeAndGo() (end func() (done int, failed []error)) {
	args := []string{"workload", "run", s.h.path("guest.hcl"), "--", "true"}
	fmt.Println("$ while :; do pannier " + quote(args) + "; done &")
	ctx, cancel := context.WithCancel(s.ctx)
	var running sync.WaitGroup
	var done int
	var failed []error
	running.Go(func() {
		for ctx.Err() == nil {
			done++
			if out, err := s.h.pannier(s.ctx, args...).CombinedOutput(); err != nil {
				failed = append(failed, fmt.Errorf("a workload failed: %w: %s", err, strings.TrimSpace(string(out))))
			}
		}
	})
	return func() (int, []error) {
		cancel()
		running.Wait()
		return done, failed
	}
}
