package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/cli/launch/child"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/takeover/probes"
	"github.com/pannier/pannier/test/lib/testbin"
)

// takeover is a sidecar that takes over from itself, and what probes of it have answered.
type takeover struct {
	dir  string
	file string
	s    *Sidecars
	n    *notes
	// probes are those since probe.
	probes *probes.Prober
}

func startTakeover(t *testing.T) *takeover {
	t.Helper()
	program := testbin.Build(t, "test/lib/takeover")
	dir := t.TempDir()
	c := &takeover{dir: dir, file: filepath.Join(dir, "bootstrap")}
	_, c.s, c.n = beside(t, child.Plan{Command: "true"})
	c.write(t, "first")
	check.NoError(t, c.s.Start(t.Context(), "envoy", func(epoch int) child.Plan {
		return child.Plan{
			Command: program, Env: os.Environ(), Args: []string{
				"-c", c.file, "-base-id", strconv.Itoa(os.Getpid()), "-restart-epoch", strconv.Itoa(epoch),
				"-address", c.address(), "-fail", filepath.Join(dir, "fail"),
			},
		}
	}, c.file))
	check.Eventually(t, "an address", func() bool { return read(c.address()) != "" })
	return c
}

// write replaces the sidecar's file as the host does.
func (c *takeover) write(t *testing.T, text string) {
	t.Helper()
	check.NoError(t, os.WriteFile(c.file+".new", []byte(text), 0o400))
	check.NoError(t, os.Rename(c.file+".new", c.file))
}

// address is the file with the sidecar's address.
func (c *takeover) address() string { return filepath.Join(c.dir, "address") }

// probe probes the sidecar without a pause until the test says that it is over.
func (c *takeover) probe(t *testing.T) (over func()) {
	t.Helper()
	c.probes = probes.Start(c.address(), 0)
	return c.probes.End
}

// answered waits until a probe got an answer.
func (c *takeover) answered(t *testing.T, want string) {
	t.Helper()
	check.Eventually(t, "the answer "+want, func() bool { return c.probes.Answered(want) > 0 })
}

func (c *takeover) processes() (pids []int) {
	for _, one := range c.s.all {
		one.mu.Lock()
		for _, p := range one.running() {
			pids = append(pids, p.PID())
		}
		one.mu.Unlock()
	}
	return pids
}

func (c *takeover) alone(t *testing.T) {
	t.Helper()
	check.Eventually(t, "the end of the one before", func() bool { return len(c.processes()) == 1 })
}

// A sidecar that takes over from itself reads a new file without a failed probe: the next one is started beside it.
func TestTakeoverFailsNoProbe(t *testing.T) {
	c := startTakeover(t)
	over := c.probe(t)
	defer over()
	c.answered(t, "0 first")
	for n, text := range []string{"second", "third"} {
		before := c.processes()
		c.write(t, text)
		c.answered(t, fmt.Sprint(n+1, " ", text))
		c.alone(t)
		if running(before[0]) {
			t.Errorf("the one before %q still runs", text)
		}
	}
	over()
	if failed, answers := c.probes.Failed(), c.probes.Answers(); len(failed) > 0 || len(answers) != 3 {
		t.Errorf("%d probes failed, by %v; answers %v", len(failed), failed, answers)
	}
	if c.n.count("the next one takes over") != 2 || len(c.n.all()) != 2 {
		t.Errorf("notes %q", c.n.all())
	}
	pids := c.processes()
	c.s.Stop(t.Context(), time.Minute)
	if running(pids[0]) {
		t.Error("it still runs after the stop")
	}
}

// While the next one cannot run, the one before goes on, and no probe fails.
func TestTakeoverThatFails(t *testing.T) {
	c := startTakeover(t)
	over := c.probe(t)
	defer over()
	c.answered(t, "0 first")
	check.NoError(t, os.WriteFile(filepath.Join(c.dir, "fail"), nil, 0o600))
	c.write(t, "second")
	check.Eventually(t, "two that fail", func() bool { return c.n.count("ended with exit code 7") >= 2 })
	check.NoError(t, os.Remove(filepath.Join(c.dir, "fail")))
	c.answered(t, "1 second")
	c.alone(t)
	over()
	if failed := c.probes.Failed(); len(failed) > 0 {
		t.Errorf("%d probes failed, by %v", len(failed), failed)
	}
}

// One that ends with nobody before it begins again with epoch 0.
func TestTakeoverBeginsAgain(t *testing.T) {
	c := startTakeover(t)
	over := c.probe(t)
	defer over()
	c.write(t, "second")
	c.answered(t, "1 second")
	c.alone(t)
	over()
	check.NoError(t, os.Remove(c.address()))
	check.NoError(t, unix.Kill(c.processes()[0], unix.SIGKILL))
	check.Eventually(t, "another address", func() bool { return read(c.address()) != "" })
	check.Eventually(t, "an answer", func() bool {
		answer, err := probes.Probe(c.address())
		return err == nil && answer == "0 second"
	})
}

// A stop ends both while one takes over from the other, and one that is taken over from and does not end is killed by
// the takeover after the next.
func TestTakeoverIsStopped(t *testing.T) {
	dir := t.TempDir()
	_, s, n := beside(t, child.Plan{Command: "true"})
	file := filepath.Join(dir, "bootstrap")
	write := func(text string) {
		t.Helper()
		check.NoError(t, os.WriteFile(file+".new", []byte(text), 0o400))
		check.NoError(t, os.Rename(file+".new", file))
	}
	write("first")
	check.NoError(t, s.Start(t.Context(), "envoy", func(epoch int) child.Plan {
		return script(fmt.Sprintf("echo $$ > %s/%d; exec sleep 60", dir, epoch))
	}, file))
	pid := func(epoch int) int { return awaitPID(t, filepath.Join(dir, strconv.Itoa(epoch))) }
	first := pid(0)
	write("second")
	second := pid(1)
	if !running(first) {
		t.Error("the first one ended, and nobody has ended it")
	}
	write("third")
	third := pid(2)
	check.Eventually(t, "the end of the first one", func() bool { return !running(first) })
	if got := s.StopRestarts(); len(got) != 2 || got[0] != third || got[1] != second {
		t.Errorf("sessions %v, want %d and %d", got, third, second)
	}
	s.Stop(t.Context(), time.Minute)
	if running(second) || running(third) {
		t.Errorf("one still runs; notes %q", strings.Join(n.all(), "\n"))
	}
	if err := unix.Kill(second, syscall.Signal(0)); !errors.Is(err, unix.ESRCH) {
		t.Errorf("it was not waited for: %v", err)
	}
}
