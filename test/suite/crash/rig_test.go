package crash

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/faultydriver"
	"github.com/pannier/pannier/test/lib/hostpath"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// kind is a driver that the matrix is run with. A faulty driver in front of it passes calls on, and
// reports when one is in flight.
type kind struct {
	name    string
	attach  bool                        // it has ControllerPublishVolume
	command func(t testing.TB) []string // starts it; nil: the faulty driver works by itself
	// forgets: when killed it forgets what is attached and staged (csi-driver-host-path saves its
	// state on create and delete only).
	forgets bool
	// ephemeral: the workload has a volume that the driver makes for it besides a registered one.
	ephemeral bool
	// mesh: the workload has a service in Consul, with a token and a sidecar.
	mesh bool
}

var kinds = []kind{
	{name: "local", ephemeral: true, command: func(t testing.TB) []string {
		return []string{
			testbin.Build(t, "drivers/csi-local"), "-endpoint", "${endpoint}", "-node-id", "${node.name}",
			"-data-dir", "${data_dir}/volumes",
		}
	}},
	{name: "hostpath", attach: true, forgets: true, command: func(t testing.TB) []string {
		return []string{
			hostpath.Binary(
				t), "-drivername", "hostpath.csi.k8s.io", "-endpoint", "${endpoint}", "-nodeid", "${node.name}-at-hostpath",
			"-statedir", "${data_dir}/volumes", "-enable-attach",
		}
	}},
	{name: "faulty", attach: true},
}

// Ids of the two drivers: volumes name the one in front.
const (
	front  = "front"
	behind = "real"
)

// rig is a host that crashes at instants that the test names, with its driver.
type rig struct {
	kind
	t      *testing.T // the current case
	h      *testhost.Host
	driver *faultydriver.Driver
	mesh   *mesh // nil: there is no Consul
	// bootFile stands for the kernel's boot id on a host that can be rebooted.
	bootFile string
	// The states while the workload runs and after it has stopped, without a crash.
	running, stopped state
	changed          map[string]state // by change, the state after it
	snapshots        int              // that were made to be deleted
}

// rigs are the hosts of one kind: a case takes an idle one, and returns it as it was unless the
// case has failed.
type rigs struct {
	kind
	reboots bool       // their hosts can be rebooted
	t       *testing.T // the parent test of all cases
	mu      sync.Mutex
	idle    []*rig
}

func (p *rigs) take(t *testing.T) *rig {
	t.Helper()
	p.mu.Lock()
	var r *rig
	if n := len(p.idle); n > 0 {
		r, p.idle = p.idle[n-1], p.idle[:n-1]
	}
	p.mu.Unlock()
	if r == nil {
		r = newRig(t, p.t, p.kind, p.reboots)
	} else {
		r.t = t
		r.h.Use(t)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(r.h.LogTail())
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.idle = append(p.idle, r)
	})
	return r
}

// volumeSpec and workloadSpec are files in the host's directory.
const (
	volumeSpec   = "data.hcl"
	workloadSpec = "w.hcl"
)

// newRig makes a host that lasts as long as all; its failures count for t.
func newRig(t, all *testing.T, k kind, reboots bool) *rig {
	t.Helper()
	testbin.RequireRoot(t, "what a crash leaves behind")
	r := &rig{kind: k, t: t, changed: map[string]state{}}
	agent := testbin.BuildTags(t, "host/cmd/pannier-agent", "failpoint")
	_, _ = testbin.Pannier(t), testbin.Build(t, "plugins/csi-bridge") // a build error is to fail here
	dir, err := os.MkdirTemp("", "front")
	if err != nil {
		t.Fatal(err)
	}
	all.Cleanup(func() { _ = os.RemoveAll(dir) })
	namespace := 0
	if reboots {
		r.bootFile = filepath.Join(dir, "boot_id")
		namespace = r.machine(t, all) // outlives the host
	}
	socket := filepath.Join(dir, "csi.sock")
	blocks := fmt.Sprintf("csi_driver %q {\n  endpoint = %q\n  settle_time = \"1s\"\n  ephemeral_volumes {}\n}\n", front, "unix://"+socket)
	if k.command != nil {
		blocks += driverBlock(behind, k.command(t))
	}
	var plugins []string
	if k.mesh {
		r.mesh = newMesh(t, all)
		blocks, plugins = blocks+r.mesh.blocks, meshPlugins
	}
	r.h = testhost.New(all, blocks, plugins...)
	r.h.Use(t)
	r.h.Agent = agent
	r.h.Env = []string{"PANNIER_FAILPOINT=" + r.h.Path("crash")}
	config := faultydriver.Config{Socket: socket, NodeID: "a-at-faulty", Mounts: true, Locks: true}
	if k.command != nil {
		config = faultydriver.Config{Socket: socket, Forward: r.endpoint()}
	}
	r.driver = faultydriver.Start(all, config)
	r.h.Namespace = namespace
	r.h.Start()
	r.writeVolume("data", small, "")
	r.h.Write(workloadSpec, fmt.Sprintf(
		"workload %q {\n  volume %q {\n    source      = %q\n    destination = %q\n  }\n%s%s}\n",
		"w", "data", "data", r.h.Path("mnt"), r.scratch(), r.services()))
	r.h.Run("volume", "create", r.h.Path(volumeSpec))
	r.observe(t)
	return r
}

// observe records the states without a crash.
func (r *rig) observe(t *testing.T) {
	t.Helper()
	r.h.Run("workload", "start", r.h.Path(workloadSpec))
	r.running = r.look()
	r.h.Run("workload", "stop", "w")
	r.stopped = r.look()
	if len(r.running["claims"]) == len(r.stopped["claims"]) || len(r.running["mounts"]) == 0 ||
		len(r.stopped["mounts"]) > 0 ||
		len(r.running["journal"]) < 2 || len(r.stopped["journal"]) > 0 || len(r.stopped["loop devices"]) > 0 {
		t.Fatalf("what is looked at is not what a workload makes: running\n%v\nstopped\n%v", r.running, r.stopped)
	}
	if r.mesh != nil {
		r.observeMesh(t)
	}
}

// scratch is the block of an ephemeral volume.
func (r *rig) scratch() string {
	if !r.ephemeral {
		return ""
	}
	return fmt.Sprintf("  volume %q {\n    driver      = %q\n    destination = %q\n  }\n", "scratch", front,
		r.h.Path("scratch"))
}

func driverBlock(id string, command []string) string {
	quoted := make([]string, len(command))
	for n, word := range command {
		quoted[n] = fmt.Sprintf("%q", word)
	}
	return fmt.Sprintf("csi_driver %q {\n  command = [%s]\n}\n", id, strings.Join(quoted, ", "))
}

// endpoint of the real driver.
func (r *rig) endpoint() string {
	if r.command == nil {
		return r.driver.Endpoint()
	}
	return "unix://" + r.h.Path("data/csi/"+behind+"/csi.sock")
}

// small is the capacity of most volumes.
const small = "16MiB"

// writeVolume writes a volume's specification.
func (r *rig) writeVolume(id, capacity, more string) string {
	return r.h.Write(id+".hcl", fmt.Sprintf(`
id           = %q
type         = "csi"
plugin_id    = %q
capacity_min = %q
capacity_max = "1GiB"
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}
%s`, id, front, capacity, more))
}

// pids of what may be killed: "host", "bridge", "driver", and the other plugins by name.
func (r *rig) pids(t *testing.T) map[string]int {
	t.Helper()
	s, err := r.h.Status()
	if err != nil {
		t.Fatal(err)
	}
	pids := map[string]int{"host": r.h.PID()}
	for _, p := range s.GetPlugins() {
		pids[p.GetName()] = int(p.GetPid())
	}
	pids["bridge"] = pids["csi-bridge"]
	for _, d := range s.GetDrivers() {
		if d.GetId() == behind {
			pids["driver"] = int(d.GetPid())
		}
	}
	return pids
}

// kill kills the named components as fast as it can; it may run in a driver's call.
func (r *rig) kill(pids map[string]int, who []string) {
	for _, name := range who {
		if pid := pids[name]; pid != 0 {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		if name == "consul" {
			r.mesh.consul.Kill(0)
		}
		if name == "driver" && r.command == nil {
			r.driver.Kill()
		} else if name == "driver" {
			r.driver.DropConnections()
		}
	}
}

// settle waits until plugins and drivers are back after a crash.
func (r *rig) settle() {
	r.h.Eventually("the plugin and the drivers are well", func() error {
		s, err := r.h.Status()
		if err != nil {
			return err
		}
		for _, p := range s.GetPlugins() {
			if p.GetState() != "running" {
				return fmt.Errorf("plugin %s is %s", p.GetName(), p.GetState())
			}
		}
		for _, d := range s.GetDrivers() {
			if !d.GetHealthy() {
				return fmt.Errorf("driver %s: %s", d.GetId(), d.GetMessage())
			}
		}
		return r.idleProcesses(s)
	})
}

// idleProcesses checks that there is one process for each plugin and each driver with a command,
// and that these are the ones that the host knows.
func (r *rig) idleProcesses(s *hostv1.StatusResponse) error {
	known := map[int]bool{}
	for _, p := range s.GetPlugins() {
		known[int(p.GetPid())] = true
	}
	for _, d := range s.GetDrivers() {
		if d.GetPid() != 0 {
			known[int(d.GetPid())] = true
		}
	}
	found := r.h.Processes()
	for _, pid := range found {
		if !known[pid] {
			return fmt.Errorf("process %d is nobody's; known are %v", pid, known)
		}
	}
	if len(found) != len(known) {
		return fmt.Errorf("processes %v run, known are %v", found, known)
	}
	return nil
}

// struck waits for the crash, and fails the test when the command ended before it.
func struck(t *testing.T, what string, crashed <-chan struct{}, cmd *command) {
	t.Helper()
	select {
	case <-crashed:
	case <-cmd.done:
		select {
		case <-crashed:
		case <-time.After(testhost.Wait): // the report may be a moment late
			t.Fatalf("%s never came: %s ended with %s\n%s", what, cmd, cmd.state(), cmd.output)
		}
	case <-time.After(testhost.Wait):
		t.Fatalf("%s never came, and %s goes on\n%s", what, cmd, cmd.output)
	}
}
