package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/docker"

	"github.com/pannier/pannier/internal/procfs"
)

// host is the agent of the demo and the directory with all its files.
type host struct {
	bin, dir   string
	env        []string       // added to the environment of every command
	docker     *docker.Daemon // the agent runs in its mount namespace; nil: in the demo's
	agent      *exec.Cmd
	background []*exec.Cmd
}

func (h *host) path(name string) string { return filepath.Join(h.dir, name) }

// mnt returns the path at which the workloads see their volume, in their own mount namespace.
func (h *host) mnt() string { return h.path("mnt") }

const agentConfig = `
name     = "demo"
data_dir = %[1]q
plugin_dir = %[2]q
socket   = %[3]q
ports { http = 0 }
leave_plugins_on_stop = false

csi_driver "local" {
  command = [%[4]q, "-endpoint", "${endpoint}", "-node-id", "${node.name}", "-data-dir", %[5]q]
}
`

const volumeSpec = `
id        = %q
type      = "csi"
plugin_id = "local"
%s
capacity_min = "64MiB"
capacity_max = "64MiB"

capability {
  access_mode     = "single-node-single-writer"
  attachment_mode = "file-system"
}
`

const workloadSpec = `
workload %q {
  volume "data" {
    source      = %q
    destination = %q
  }
}
`

func (h *host) writeFiles() error {
	return errors.Join(
		h.copyPlugins(),
		h.writeFile("agent.hcl", fmt.Sprintf(agentConfig, h.path("data"), h.path("plugins"), h.path("pannier.sock"),
			filepath.Join(h.bin, "csi-local"), h.path("volumes"))),
		h.writeFile("data.hcl", fmt.Sprintf(volumeSpec, "data", "")),
		h.writeFile("writer.hcl", fmt.Sprintf(workloadSpec, "writer", "data", h.mnt())),
		h.writeFile("ticker.hcl", fmt.Sprintf(workloadSpec, "ticker", "data", h.mnt())),
		h.writeFile("guest-volume.hcl", fmt.Sprintf(volumeSpec, "guest", "")),
		h.writeFile("guest.hcl", fmt.Sprintf(workloadSpec, "guest", "guest", h.mnt())),
		h.writeFile("reader.hcl", fmt.Sprintf(workloadSpec, "reader", "copy", h.mnt())),
	)
}

func (h *host) writeFile(name, content string) error {
	err := os.MkdirAll(filepath.Dir(h.path(name)), 0o755)
	return errors.Join(err, os.WriteFile(h.path(name), []byte(content), 0o600))
}

func (h *host) appendFile(name, content string) error {
	before, err := os.ReadFile(h.path(name))
	if err != nil {
		return err
	}
	return h.writeFile(name, string(before)+content)
}

// pannier prepares a command of the CLI.
func (h *host) pannier(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(h.bin, "pannier"), args...)
	if h.docker != nil {
		enter := []string{"--target", strconv.Itoa(h.docker.PID()), "--mount", "--"}
		cmd = exec.CommandContext(ctx, "nsenter", append(enter, cmd.Args...)...)
	}
	cmd.Env = h.environment()
	return cmd
}

// environment of the commands that reach the agent.
func (h *host) environment() []string {
	env := append(os.Environ(), "PANNIER_ADDR=unix://"+h.path("pannier.sock"), "NO_COLOR=1")
	if h.docker != nil {
		env = append(env, h.docker.Env()...)
	}
	return append(env, h.env...)
}

// command shows a command of the CLI, runs it and returns its whole output.
func (h *host) command(ctx context.Context, args ...string) (string, error) {
	fmt.Println("$ pannier " + quote(args))
	out, err := h.pannier(ctx, args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("pannier %s: %w", strings.Join(args, " "), err)
	}
	return string(out), err
}

// start starts the agent with its log in a file.
func (h *host) start(ctx context.Context) error {
	args := []string{"agent", "-config", h.path("agent.hcl")}
	fmt.Println("$ pannier " + quote(args) + " &")
	log, err := os.OpenFile(h.path("agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	h.agent = h.pannier(context.WithoutCancel(ctx), args...)
	h.agent.Stdout, h.agent.Stderr = log, log
	return h.agent.Start()
}

// signal sends the agent a signal and waits for its end.
func (h *host) signal(sig syscall.Signal) error {
	if err := h.agent.Process.Signal(sig); err != nil {
		return err
	}
	err := h.agent.Wait()
	h.agent = nil
	if sig == unix.SIGKILL {
		return nil
	}
	return err
}

type status struct {
	Ready   bool
	Claims  int64
	Plugins []plugin
	Drivers []struct {
		ID      string
		PID     int64
		Healthy bool
	}
}

type plugin struct {
	Name    string
	PID     int64
	State   string
	Refused map[string]string
	// FileProblem explains why the file in the plugin directory is not run.
	FileProblem string `json:"file_problem"`
	Swaps       []struct{ Error string }
	Canary      *struct{ Percent int }
}

func (h *host) status(ctx context.Context) (s status, err error) {
	var stderr bytes.Buffer
	cmd := h.pannier(ctx, "status", "-o", "json")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return s, fmt.Errorf("pannier status: %w: %s", err, stderr.Bytes())
	}
	err = json.Unmarshal(out, &s)
	return s, err
}

func (h *host) waitReady(ctx context.Context) error {
	return h.wait(ctx, "the agent is ready, its plugins run and its drivers are healthy", func() error {
		s, err := h.status(ctx)
		if err != nil {
			return err
		}
		ready := s.Ready
		for _, p := range s.Plugins {
			ready = ready && p.State == "running"
		}
		for _, d := range s.Drivers {
			ready = ready && d.Healthy
		}
		if !ready {
			return fmt.Errorf("not yet: %+v", s)
		}
		return nil
	})
}

// children returns the processes of the plugins and the drivers by name.
func (h *host) children(ctx context.Context) (pids map[string]int, err error) {
	s, err := h.status(ctx)
	if err != nil {
		return nil, err
	}
	pids = map[string]int{}
	for _, p := range s.Plugins {
		pids[p.Name] = int(p.PID)
	}
	for _, d := range s.Drivers {
		pids["driver "+d.ID] = int(d.PID)
	}
	return pids, nil
}

// wait polls until check succeeds, for up to a minute.
func (h *host) wait(ctx context.Context, what string, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w (last: %w)", what, ctx.Err(), err)
		case <-time.After(pollEvery):
		}
	}
}

// childOf returns the process that a `workload run` has started.
func (h *host) childOf(ctx context.Context, pid int) (child int) {
	_ = h.wait(ctx, "the workload's process is there", func() error {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		if err != nil {
			return err
		}
		all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		for _, path := range all {
			if more, err := os.ReadFile(path); err == nil {
				raw = append(append(raw, ' '), more...)
			}
		}
		fields := strings.Fields(string(raw))
		if len(fields) == 0 {
			return errors.New("no child")
		}
		child, err = strconv.Atoi(fields[0])
		return err
	})
	return child
}

func (h *host) noMounts() error {
	found, err := mountinfo.GetMounts(mountinfo.PrefixFilter(h.dir))
	if err == nil && len(found) > 0 {
		err = fmt.Errorf("%s is mounted", found[0].Mountpoint)
	}
	return err
}

// nothingLeft checks that a stopped agent has left nothing.
func (h *host) nothingLeft(children map[string]int) error {
	for name, pid := range children {
		if raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && strings.Contains(string(raw), h.dir) {
			return fmt.Errorf("process %d of %s still runs", pid, name)
		}
	}
	if err := h.noMounts(); err != nil {
		return err
	}
	for name, file := range procfs.LoopFiles() {
		if strings.HasPrefix(file, h.dir) {
			return fmt.Errorf("%s holds %s", name, file)
		}
	}
	return h.noBigFiles()
}

// noBigFiles checks that no volumes are left.
func (h *host) noBigFiles() error {
	return filepath.WalkDir(h.path("volumes"), func(path string, d os.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil // there were no volumes
		}
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Size() >= 1<<20 {
			err = fmt.Errorf("%s of %d bytes is left", path, info.Size())
		}
		return err
	})
}

// cleanUp ends everything that the demo has started, also after a failure.
func (h *host) cleanUp() error {
	for _, cmd := range h.background {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	if h.agent != nil {
		_ = h.signal(unix.SIGTERM)
	}
	if found, err := mountinfo.GetMounts(mountinfo.PrefixFilter(h.dir)); err == nil {
		for i := len(found) - 1; i >= 0; i-- {
			_ = unix.Unmount(found[i].Mountpoint, 0)
		}
	}
	return os.RemoveAll(h.dir)
}

// logTail returns the end of each existing log as an error.
func (h *host) logTail() error {
	var tails []error
	for _, name := range []string{"consul.log", "agent.log"} {
		if raw, err := os.ReadFile(h.path(name)); err == nil {
			lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
			tails = append(tails, fmt.Errorf("%s ends with:\n%s", name, strings.Join(lines[max(0, len(lines)-25):], "\n")))
		}
	}
	return errors.Join(tails...)
}
