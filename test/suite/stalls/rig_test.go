package stalls

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/procfs"
	"github.com/pannier/pannier/test/lib/faultydriver"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// A stall is one fault, and what an operator sees of it.
type stall struct {
	name string
	// begin makes the fault. end ends it; nil: there is nothing to end.
	begin func(r *rig) (end func())
	// sees is in what status, events and doctor print meanwhile, or shortly after; empty: nothing needs to be seen.
	sees string
	// restarts: the fault is at a start of the agent.
	restarts bool
	// lasting: the host cannot be mended while its agent runs.
	lasting bool
}

// rig is a host with an agent, and what cases stall.
type rig struct {
	t      *testing.T
	h      *testhost.Host
	disk   *testhost.Disk // at the data directory
	driver *faultydriver.Driver
	probes int
}

// newRig starts a host whose workloads w and f have a volume of an outside driver and one of a FUSE file system.
func newRig(t *testing.T) *rig {
	t.Helper()
	r := prepareRig(t, "", "docker-volume")
	r.h.Start()
	r.use()
	return r
}

// prepareRig makes such a host, with more in its configuration, and does not start it.
func prepareRig(t *testing.T, more string, plugins ...string) *rig {
	t.Helper()
	r := prepareDriver(t, more, plugins...)
	r.disk = r.h.NewDisk(t, 256<<20)
	return r
}

// prepareDriver makes such a host without a disk of its own.
func prepareDriver(t *testing.T, more string, plugins ...string) *rig {
	t.Helper()
	testbin.RequireRoot(t, "an agent whose surroundings stall")
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skipf("needs /dev/fuse (%v); not covered: an agent whose surroundings stall", err)
	}
	r := &rig{t: t, driver: faultydriver.Start(t, faultydriver.Config{Mounts: true, NodeID: "faulty-a"})}
	r.h = testhost.New(t, fmt.Sprintf(`
csi_driver "faulty" {
  endpoint    = %q
  settle_time = "1s"
}
csi_driver "fuse" {
  command = [%q, "-endpoint", "${endpoint}", "-dir", "${data_dir}/volumes", "-version", "1"]
}
%s`, r.driver.Endpoint(), testbin.Build(t, "test/suite/fusedriver"), more), plugins...)
	return r
}

// use starts the workloads.
func (r *rig) use() {
	r.t.Helper()
	for id, driver := range map[string]string{"w": "faulty", "f": "fuse"} {
		r.volume(id, driver)
		r.h.Run("workload", "start", r.workload(id))
	}
}

// volume registers a volume.
func (r *rig) volume(id, driver string) {
	r.t.Helper()
	if driver == "faulty" {
		r.driver.AddVolume(id)
	}
	r.h.Run("volume", "register", r.h.Write(id+"-volume.hcl", fmt.Sprintf(`
id          = %q
type        = "csi"
plugin_id   = %q
external_id = %[1]q
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}
`, id, driver)))
}

// workload writes the spec of a workload with the volume of its name.
func (r *rig) workload(id string) (spec string) {
	r.t.Helper()
	return r.h.Write(id+".hcl", fmt.Sprintf(
		"workload %q {\n  volume \"data\" {\n    source      = %[1]q\n    destination = %q\n  }\n}\n", id, r.h.Path("mnt-"+id)))
}

// patience bounds what must not hang.
const patience = 30 * time.Second

// ask runs a command that must end, whatever it answers.
func (r *rig) ask(args ...string) string {
	r.t.Helper()
	var out bytes.Buffer
	cmd := r.h.Command(args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	late := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	_ = cmd.Wait() // it may fail
	if !late.Stop() {
		r.t.Errorf("pannier %s does not answer\n%s\n%s", strings.Join(args, " "), out.String(), r.h.LogTail())
	}
	return out.String()
}

// changes starts and stops workloads until end.
func (r *rig) changes() (end func()) {
	r.t.Helper()
	stop := make(chan struct{})
	var changing sync.WaitGroup
	ids := []string{"c0", "c1", "c2"}
	for _, id := range ids {
		r.volume(id, "faulty")
		spec := r.workload(id)
		changing.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					r.h.Try("workload", "start", spec) // may fail
					r.h.Try("workload", "stop", id)
				}
			}
		})
	}
	return func() {
		close(stop)
		changing.Wait()
		for _, id := range ids {
			r.h.AwaitFree(id)
			r.h.Run("volume", "deregister", id)
		}
	}
}

// answers checks that an operator gets answers.
func (r *rig) answers() {
	r.t.Helper()
	var asked sync.WaitGroup
	for _, args := range [][]string{
		{"status"},
		{"workload", "status"},
		{"workload", "status", "w"},
		{"workload", "status", "f"},
		{"volume", "status"},
		{"volume", "status", "w"},
		{"plugin", "status"},
		{"driver", "status"},
	} {
		asked.Go(func() { r.ask(args...) })
	}
	asked.Wait()
	if _, err := r.h.Status(); err != nil {
		r.t.Errorf("the agent's status: %v\n%s", err, r.h.LogTail())
	}
}

// works checks that everything goes on as before: plugins, drivers, and a workload that comes and goes.
func (r *rig) works() {
	r.t.Helper()
	r.h.AwaitReady()
	r.h.Eventually("plugins and drivers serve", func() error {
		s, err := r.h.Status()
		if err != nil {
			return err
		}
		for _, d := range s.GetDrivers() {
			if !d.GetHealthy() && d.GetId() != mute {
				return fmt.Errorf("driver %s: %s", d.GetId(), d.GetMessage())
			}
		}
		for _, p := range s.GetPlugins() {
			if p.GetState() != "running" {
				return fmt.Errorf("plugin %s: %s %s", p.GetName(), p.GetState(), p.GetLastError())
			}
		}
		return nil
	})
	r.probes++
	id := fmt.Sprintf("p%d", r.probes)
	r.volume(id, "faulty")
	spec := r.workload(id)
	r.h.Eventually("a workload starts", func() error {
		if got := r.h.Try("workload", "start", spec); got.Code != 0 {
			return fmt.Errorf("%s%s", got.Stdout, got.Stderr)
		}
		return nil
	})
	r.h.Run("workload", "stop", id)
	r.h.AwaitFree(id)
	r.h.Run("volume", "deregister", id)
	for _, id := range []string{"w", "f"} {
		if got := r.h.Holder(id).GetWorkload(); got != id {
			r.t.Errorf("volume %s is held by %q", id, got)
		}
	}
}

// seen waits until an operator sees a text.
func (r *rig) seen(text string) {
	r.t.Helper()
	r.h.Eventually("an operator sees "+text, func() error {
		var all string
		for _, args := range [][]string{{"status"}, {"events", "-recent", "200"}, {"doctor", "-config", r.h.Config}} {
			if all += r.ask(args...); strings.Contains(all, text) {
				return nil
			}
		}
		return fmt.Errorf("it is not in %s", all)
	})
}

// restart ends the agent, changes something, and starts it again.
func (r *rig) restart(change func()) {
	r.t.Helper()
	r.h.Kill()
	change()
	r.h.Launch()
}

// pid returns the process of a plugin or a driver.
func (r *rig) pid(name string) int {
	r.t.Helper()
	s, err := r.h.Status()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, p := range s.GetPlugins() {
		if p.GetName() == name {
			return int(p.GetPid())
		}
	}
	for _, d := range s.GetDrivers() {
		if d.GetId() == name {
			return int(d.GetPid())
		}
	}
	r.t.Fatalf("there is no process of %s", name)
	return 0
}

// fuseServer returns the process that serves the FUSE volume, a child of a driver that may have ended.
func (r *rig) fuseServer() (pid int) {
	r.t.Helper()
	r.h.Eventually("a process serves the FUSE volume", func() error {
		all, err := procfs.Processes()
		if err != nil {
			return err
		}
		at := slices.IndexFunc(all, func(p procfs.Stat) bool {
			line, _ := os.ReadFile(procfs.Dir(p.PID) + "/cmdline")
			return !p.Ended() && strings.Contains(string(line), "\x00mount\x00"+r.h.Path("data")+"/")
		})
		if at < 0 {
			return errors.New("there is none")
		}
		pid = all[at].PID
		return nil
	})
	return pid
}

// tally counts the cases, and those that ended the agent.
type tally struct{ tried, along atomic.Int64 }

func (n *tally) String() string {
	return fmt.Sprintf("stalls: %d tried, %d took the agent along", n.tried.Load(), n.along.Load())
}

// try makes one stall, and ends it.
func (r *rig) try(t *testing.T, n *tally, s stall, long bool) {
	t.Helper()
	before := r.t
	r.t = t
	r.h.Use(t)
	defer func() { r.t = before }()
	agent := 0
	if r.h.Alive() {
		agent = r.h.PID()
	}
	n.tried.Add(1)
	end := s.begin(r)
	if end == nil {
		end = func() {}
	}
	end = sync.OnceFunc(end)
	t.Cleanup(end)
	r.answers()
	if s.sees != "" {
		r.seen(s.sees)
	}
	if long {
		wait, cancel := context.WithTimeout(t.Context(), rand.N(hold)) //nolint:gosec // not for secrets
		<-wait.Done()
		cancel()
		r.answers()
	}
	end()
	if !s.lasting {
		r.works()
	}
	if !r.h.Alive() || (r.h.PID() != agent) != s.restarts {
		n.along.Add(1)
		t.Errorf("it took the agent along\n%s", r.h.LogTail())
	}
}

// signal stops or kills a process, and lets a stopped one go on.
func (r *rig) signal(pid int, sig unix.Signal) (end func()) {
	r.t.Helper()
	if err := unix.Kill(pid, sig); err != nil {
		r.t.Fatalf("signal process %d: %v", pid, err)
	}
	return func() {
		if sig == unix.SIGSTOP {
			_ = unix.Kill(pid, unix.SIGCONT) // it may have been killed
		}
	}
}
