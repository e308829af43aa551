package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// teller runs the demo's steps and stops at the first failure.
type teller struct {
	ctx context.Context
	h   *host
	err error

	children map[string]int // the processes of the plugins and drivers at the last check
}

func (s *teller) say(text string) {
	if s.err == nil {
		fmt.Printf("\n# %s\n", text)
	}
}

// do runs fn unless a step has failed.
func (s *teller) do(fn func() error) {
	if s.err == nil {
		s.err = fn()
	}
}

// pannier runs a command as an operator would, and shows its output.
func (s *teller) pannier(args ...string) {
	s.do(func() error {
		out, err := s.h.command(s.ctx, args...)
		fmt.Print(indent(out))
		return err
	})
}

// prints runs a command that must print text.
func (s *teller) prints(text string, args ...string) {
	s.do(func() error {
		out, err := s.h.command(s.ctx, args...)
		fmt.Print(indent(out))
		if err == nil && !strings.Contains(out, text) {
			err = fmt.Errorf("%q is not in the output of pannier %s", text, strings.Join(args, " "))
		}
		return err
	})
}

// refused runs a command that must fail because the volume is held.
func (s *teller) refused(args ...string) {
	s.do(func() error {
		out, err := s.h.command(s.ctx, args...)
		fmt.Print(indent(out))
		if err == nil {
			return fmt.Errorf("pannier %s worked, but had to be refused", strings.Join(args, " "))
		}
		if !strings.Contains(out, "ticker") {
			return fmt.Errorf("the refusal does not name the holder: %w", err)
		}
		return nil
	})
}

// check runs checks and reports that they pass.
func (s *teller) check(what string, checks ...func() error) {
	s.do(func() error {
		for _, c := range checks {
			if err := c(); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
		fmt.Println("  ok: " + what)
		return nil
	})
}

func (s *teller) writeFiles() { s.do(s.h.writeFiles) }
func (s *teller) writeClone(snapshot string) {
	s.do(func() error {
		return s.h.writeFile("copy.hcl", fmt.Sprintf(volumeSpec, "copy", `snapshot_id = "`+snapshot+`"`))
	})
}

func (s *teller) startAgent() {
	s.do(func() error {
		if err := s.h.start(s.ctx); err != nil {
			return err
		}
		return s.h.waitReady(s.ctx)
	})
}

func (s *teller) killAgent() {
	s.do(func() (err error) {
		if s.children, err = s.h.children(s.ctx); err != nil {
			return err
		}
		fmt.Printf("$ kill -9 %d\n", s.h.agent.Process.Pid)
		return s.h.signal(unix.SIGKILL)
	})
}

func (s *teller) stopAgent() {
	s.do(func() error {
		fmt.Printf("$ kill -TERM %d\n", s.h.agent.Process.Pid)
		return s.h.signal(unix.SIGTERM)
	})
}

// background starts a command in the background.
func (s *teller) background(args ...string) *exec.Cmd {
	var cmd *exec.Cmd
	s.do(func() error {
		fmt.Println("$ pannier " + quote(args) + " &")
		cmd = s.h.pannier(s.ctx, args...)
		cmd.Stdout, cmd.Stderr = &bytes.Buffer{}, &bytes.Buffer{}
		if err := cmd.Start(); err != nil {
			return err
		}
		s.h.background = append(s.h.background, cmd)
		return nil
	})
	return cmd
}

// ticks waits until the background workload has written n more lines.
func (s *teller) ticks(cmd *exec.Cmd, n int) {
	s.do(func() error { return s.ticksNow(cmd, n) })
}

func (s *teller) ticksNow(cmd *exec.Cmd, n int) error {
	var first int64 = -1
	return s.h.wait(s.ctx, "the background workload writes", func() error {
		// The first child may be one that prepares the mounts.
		info, err := os.Stat(fmt.Sprintf("/proc/%d/root%s/ticks", s.h.childOf(s.ctx, cmd.Process.Pid), s.h.mnt()))
		if err != nil {
			return err
		}
		if first < 0 {
			first = info.Size()
		}
		if got := (info.Size() - first) / int64(len("tick\n")); got < int64(n) {
			return fmt.Errorf("%d new lines", got)
		}
		return nil
	})
}

// end asks a background command to end and waits for it.
func (s *teller) end(cmd *exec.Cmd) {
	s.signal(cmd)
	s.ended(cmd)
}

// signal begins to end a workload.
func (s *teller) signal(cmd *exec.Cmd) {
	s.do(func() error {
		fmt.Printf("$ kill -TERM %d\n", cmd.Process.Pid)
		return cmd.Process.Signal(unix.SIGTERM)
	})
}

// ended waits until a workload has ended by its signal.
func (s *teller) ended(cmd *exec.Cmd) {
	s.do(func() error {
		err := cmd.Wait()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 128+int(unix.SIGTERM) {
			return fmt.Errorf("the workload's exit code is %d, not 143: %s", cmd.ProcessState.ExitCode(), cmd.Stderr)
		}
		return nil
	})
}

func (s *teller) snapshot(volume, name string) (id string) {
	s.do(func() error {
		out, err := s.h.command(s.ctx, "volume", "snapshot", "create", "-o", "json", volume, name)
		if err != nil {
			fmt.Print(indent(out))
			return err
		}
		var answer struct {
			Snapshot struct {
				SnapshotID string `json:"snapshot_id"`
				Size       int64
			}
		}
		if err := json.Unmarshal([]byte(out), &answer); err != nil {
			return fmt.Errorf("read %q: %w", out, err)
		}
		if id = answer.Snapshot.SnapshotID; id == "" {
			return fmt.Errorf("no snapshot id in %q", out)
		}
		fmt.Printf("  snapshot %s, %d bytes\n", id, answer.Snapshot.Size)
		return nil
	})
	return id
}

func (s *teller) childrenAlive() error {
	for name, pid := range s.children {
		if err := unix.Kill(pid, 0); err != nil {
			return fmt.Errorf("process %d of %s is gone: %w", pid, name, err)
		}
	}
	return nil
}

func (s *teller) sameChildren() error {
	now, err := s.h.children(s.ctx)
	if err == nil && !maps.Equal(now, s.children) {
		err = fmt.Errorf("the processes %v were %v", now, s.children)
	}
	return err
}

func (s *teller) noClaims() error {
	st, err := s.h.status(s.ctx)
	if err == nil && st.Claims != 0 {
		err = fmt.Errorf("%d claims are left", st.Claims)
	}
	return err
}

func (s *teller) noMounts() error { return s.h.noMounts() }

func (s *teller) nothingLeft() error { return s.h.nothingLeft(s.children) }

func indent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString("  " + strings.TrimRight(line, "\n") + "\n")
	}
	return b.String()
}

func quote(args []string) string {
	var out []string
	for _, a := range args {
		if strings.ContainsAny(a, " '\"$;<>&|") {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		out = append(out, a)
	}
	return strings.Join(out, " ")
}

// pollEvery is the interval at which the demo checks a condition.
const pollEvery = 20 * time.Millisecond
