package crash

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pannier/pannier/test/lib/faultydriver"
)

// crash is one case: which components are killed, and when.
type crash struct {
	who []string
	// Either an instant within the host, see host/internal/system/failpoint,
	point string
	// or a call to the driver: before it does its work, or when it has done it and
	// has not answered.
	rpc    string
	worked bool
	// or a plugin's request to Consul, likewise.
	request *request
}

func (c crash) String() string {
	who := cmp.Or(strings.Join(c.who, "+"), "connection")
	switch {
	case c.point != "":
		return who + "/" + c.point
	case c.worked:
		return who + "/" + c.call() + ":worked"
	default:
		return who + "/" + c.call() + ":arrived"
	}
}

// call names the call in the middle of which the crash comes.
func (c crash) call() string {
	if c.request != nil {
		return c.request.name
	}
	return c.rpc
}

// described is the case in words.
func (c crash) described() string {
	who := strings.Join(c.who, ", ") + " killed"
	if len(c.who) == 0 {
		who = "connection lost"
	}
	switch {
	case c.point != "":
		what, point, _ := strings.Cut(c.point, ":")
		return fmt.Sprintf("%s: %s: %s", who, what, point)
	case c.worked:
		return fmt.Sprintf("%s: %s has worked and not answered", who, c.call())
	default:
		return fmt.Sprintf("%s: %s has arrived and not worked", who, c.call())
	}
}

// arm prepares the crash; crashed is closed when it has happened.
func (r *rig) arm(t *testing.T, c crash) (crashed <-chan struct{}) {
	t.Helper()
	if c.point != "" {
		r.h.Write("crash", c.point+"\n")
		t.Cleanup(func() { _ = os.Remove(r.h.Path("crash")) })
		return r.h.Ended()
	}
	happened := make(chan struct{})
	pids := r.pids(t)
	if c.request != nil {
		r.mesh.arm(c, func() { r.kill(pids, c.who); close(happened) })
		return happened
	}
	strike := func() {
		r.claimed(c.rpc)
		r.kill(pids, c.who)
		close(happened)
	}
	switch {
	case len(c.who) == 0:
		r.driver.Script(c.rpc, faultydriver.Drop())
		close(happened)
	case c.worked:
		r.driver.Script(c.rpc, faultydriver.After(strike))
	default:
		r.driver.Script(c.rpc, faultydriver.Before(strike))
	}
	return happened
}

// claimed checks that every call for a workload is made under a claim: nothing is mounted or
// attached without one. It runs in the driver's call.
func (r *rig) claimed(rpc string) {
	if !strings.Contains(rpc, "ublish") && !strings.Contains(rpc, "tage") {
		return // the call changes the volume itself
	}
	if s, err := r.h.Status(); err == nil && s.GetClaims() == 0 {
		r.t.Errorf("%s came while no claim stood", rpc)
	}
}

// restart starts what nothing else restarts: Consul, the host, and a driver that runs in the test.
func (r *rig) restart(who []string) {
	if slices.Contains(who, "consul") {
		r.mesh.consul.Restart(0, false)
	}
	if slices.Contains(who, "host") {
		r.h.AwaitEnd()
		r.h.Launch()
	}
	if slices.Contains(who, "driver") && r.command == nil {
		r.driver.Restart()
	}
}

// command is a running CLI command.
type command struct {
	*exec.Cmd
	output *bytes.Buffer
	done   chan struct{}
}

func (r *rig) run(t *testing.T, args ...string) *command {
	t.Helper()
	c := &command{Cmd: r.h.Command(args...), output: &bytes.Buffer{}, done: make(chan struct{})}
	c.Stdout, c.Stderr = c.output, c.output
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = c.Wait(); close(c.done) }()
	t.Cleanup(func() { _ = c.Process.Kill(); <-c.done })
	return c
}

func (c *command) String() string { return "pannier " + strings.Join(c.Args[1:], " ") }
func (c *command) state() string  { return c.ProcessState.String() }

// succeeds waits for the command's end.
func (c *command) succeeds(t *testing.T) {
	t.Helper()
	<-c.done
	if !c.ProcessState.Success() {
		t.Fatalf("%s: %s\n%s", c, c.state(), c.output)
	}
}

// equals compares the present state with the one of a run without the crash.
func (r *rig) equals(t *testing.T, when string, want state) {
	t.Helper()
	if d := r.look().differs(want); d != "" {
		t.Fatalf("%s, the state differs from that without a crash (+ is too much, - is missing):\n%s", when, d)
	}
	if v := r.driver.Violations(); len(v) > 0 {
		t.Fatalf("%s, the driver had seen calls that it must not see: %q", when, v)
	}
}

// matrix collects the cases of a run.
type matrix struct {
	mu      sync.Mutex
	lines   []string
	differs int
}

// add runs one case and notes its outcome.
func (m *matrix) add(t *testing.T, name, described string, run func(t *testing.T)) {
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		began := time.Now()
		t.Cleanup(func() {
			if t.Skipped() {
				return
			}
			verdict := "same"
			if t.Failed() {
				verdict = "DIFFERS"
				fmt.Printf("to run this case again: go test ./test/suite/crash -full -seed=%d -run '%s'\n", *seed,
					pattern(t.Name()))
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			if t.Failed() {
				m.differs++
			}
			m.lines = append(m.lines, fmt.Sprintf("%-8s%5.1f s  %s", verdict, time.Since(began).Seconds(), described))
		})
		run(t)
	})
}

// pattern matches one test's name.
func pattern(name string) string {
	parts := strings.Split(name, "/")
	for n, p := range parts {
		parts[n] = "^" + strings.NewReplacer("+", `\+`, ".", `\.`).Replace(p) + "$"
	}
	return strings.Join(parts, "/")
}

func (m *matrix) print() {
	slices.SortFunc(m.lines, func(a, b string) int { return strings.Compare(a[17:], b[17:]) })
	for _, line := range m.lines {
		fmt.Println(line)
	}
	fmt.Printf("crash matrix: %d cases, %d differ\n", len(m.lines), m.differs)
}
