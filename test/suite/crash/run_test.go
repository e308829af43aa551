package crash

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/faultydriver"
	"github.com/pannier/pannier/test/lib/testhost"
)

// runs kills the host, the CLI, or both, at every instant of a workload's run in the foreground.
func (p *rigs) runs(t *testing.T, m *matrix) {
	type run struct {
		crash
		stopping bool // while it is released, not while it is started
	}
	var all []run
	up := append(starts(p.kind), cases(of("process", "observed", "noted"), nil)...)
	for n, cases := range [][]crash{up, stops(p.kind)} {
		for _, c := range cases {
			switch {
			case c.point != "":
				all = append(all, run{c, n == 1}, run{crash{who: []string{"host", "cli"}, point: c.point}, n == 1})
			case slices.Equal(c.who, []string{"host"}):
				all = append(all, run{crash{who: []string{"cli"}, rpc: c.rpc, worked: c.worked}, n == 1})
			}
		}
	}
	for _, c := range few(24, all) {
		name, while := "up:", ", bringing it up"
		if c.stopping {
			name, while = "down:", ", releasing it"
		}
		m.add(t, name+c.String(), family(t)+": "+c.described()+while,
			func(t *testing.T) { p.take(t).runWorkload(t, c.crash, c.stopping) })
	}
	for _, who := range few(2, [][]string{{"host"}, {"cli"}, {"host", "cli"}}) {
		c := crash{who: who, point: "program:runs"}
		m.add(t, c.String(), family(t)+": "+c.described(), func(t *testing.T) { p.take(t).killUnderProgram(t, who) })
	}
}

// program appends a line to a file at each start, so that a second start shows.
func (r *rig) program(t *testing.T) *command {
	t.Helper()
	_ = os.Remove(r.h.Path("begun"))
	return r.run(t, "workload", "run", r.h.Path(workloadSpec), "--",
		"sh", "-c", "trap 'exit 0' TERM; echo x >> "+r.h.Path("begun")+"; while :; do sleep 0.02; done")
}

// begun is how often the program was started.
func (r *rig) begun(t *testing.T) int {
	t.Helper()
	raw, err := os.ReadFile(r.h.Path("begun"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return bytes.Count(raw, []byte("x"))
}

func (r *rig) awaitProgram(t *testing.T, cmd *command) {
	t.Helper()
	r.h.Eventually("the program runs", func() error {
		select {
		case <-cmd.done:
			t.Fatalf("%s ended: %s\n%s", cmd, cmd.state(), cmd.output)
		default:
		}
		if r.begun(t) == 0 {
			return errors.New("it has not begun")
		}
		return nil
	})
}

// watchCLI kills the CLI in the middle of a call; the call continues.
func (r *rig) watchCLI(c crash, cmd **command) (died <-chan struct{}) {
	happened := make(chan struct{})
	strike := func() {
		_ = (*cmd).Process.Kill()
		<-(*cmd).done
		close(happened)
	}
	nothing := func() {}
	if c.worked {
		r.driver.Script(c.rpc, faultydriver.Watched(nothing, strike))
	} else {
		r.driver.Script(c.rpc, faultydriver.Watched(strike, nothing))
	}
	return happened
}

func (r *rig) runWorkload(t *testing.T, c crash, stopping bool) {
	var cmd *command
	if stopping {
		cmd = r.program(t)
		r.awaitProgram(t, cmd)
	}
	var crashed <-chan struct{}
	if c.rpc != "" {
		crashed = r.watchCLI(c, &cmd)
	} else {
		crashed = r.arm(t, c)
	}
	if stopping {
		r.terminate(t, cmd)
	} else {
		cmd = r.program(t)
	}
	if c.rpc != "" { // the CLI itself dies
		await(t, c.described(), crashed)
	} else {
		struck(t, c.described(), crashed, cmd)
	}
	r.afterRun(t, c.who, cmd, stopping)
}

// afterRun restarts the host where it was killed, and waits for the workload's end.
func (r *rig) afterRun(t *testing.T, who []string, cmd *command, stopping bool) {
	if slices.Contains(who, "cli") {
		_ = cmd.Process.Kill()
		<-cmd.done
	}
	if slices.Contains(who, "host") {
		r.restart(who)
	}
	if slices.Contains(who, "cli") {
		r.h.NothingInUse() // without a command
	} else {
		if !stopping {
			r.awaitProgram(t, cmd)
			r.terminate(t, cmd)
		}
		cmd.succeeds(t)
	}
	r.equals(t, "after the run", r.stopped)
	if n := r.begun(t); n > 1 {
		t.Errorf("the program began %d times", n)
	}
}

func (r *rig) terminate(t *testing.T, cmd *command) {
	t.Helper()
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) killUnderProgram(t *testing.T, who []string) {
	cmd := r.program(t)
	r.awaitProgram(t, cmd)
	r.kill(r.pids(t), who)
	r.afterRun(t, who, cmd, false)
	select {
	case <-cmd.done:
	case <-time.After(testhost.Wait):
		t.Fatal("the command goes on")
	}
}

func await(t *testing.T, what string, happened <-chan struct{}) {
	t.Helper()
	select {
	case <-happened:
	case <-time.After(testhost.Wait):
		t.Fatalf("%s never came", what)
	}
}
