package drivers

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/faultydriver"
)

func faults() []row {
	rows := []row{
		{name: "agent killed after each step", run: agentKilled},
		{name: "driver killed while a workload runs", run: killedUnderWorkload},
		{name: "stop while the driver is down", run: stopWhileDown},
	}
	for _, k := range kills() {
		rows = append(rows, row{
			name: "driver killed in " + k.rpc, slow: k.rpc != "NodePublishVolume",
			run: func(c *trial) { killedIn(c, k) },
		})
	}
	return rows
}

// agentKilled kills the agent between any two commands of a volume's life.
func agentKilled(c *trial) {
	again := func() { c.h.Kill(); c.h.Start() }
	c.volume("data", "")
	again()
	c.write("data", "kept")
	again()
	spec := c.workload("w", "data", "")
	c.h.Run("workload", "start", spec)
	mounts := len(c.h.VolumeMounts())
	again()
	if got := c.h.Run("workload", "status", "w"); !strings.Contains(got, "running") || len(c.h.VolumeMounts()) != mounts {
		c.t.Errorf("after the agent's restart there are mounts %q, and the workload is\n%s", c.h.VolumeMounts(), got)
	}
	c.h.Run("workload", "stop", "w")
	again()
	c.h.NothingInUse()
	c.reads("data", "kept")
	c.h.Run("volume", "delete", "data")
	c.forget("data")
	again()
	c.h.Refused(3, []string{"data"}, "volume", "status", "data")
}

// killedUnderWorkload kills the driver under a program, which goes on and writes when the driver is back.
func killedUnderWorkload(c *trial) {
	c.volume("data", "")
	up, proceed := c.h.Path("up"), c.h.Path("proceed")
	ended := c.background("workload", "run", c.workload("w", "data", ""), "--", "sh", "-c", fmt.Sprintf(
		"touch %s; while ! test -e %s; do sleep 0.02; done; echo late > %s", up, proceed, c.h.Path("mnt/file")))
	defer func() { check.NoError(c.t, errors.Join(os.Remove(up), os.Remove(proceed))) }()
	c.h.Eventually("the program runs", func() error { _, err := os.Stat(up); return err })
	before := c.status().GetPid()
	c.kill()
	c.restarted(before)
	check.NoError(c.t, os.WriteFile(proceed, nil, 0o600))
	check.NoError(c.t, ended())
	c.h.NothingInUse()
	c.reads("data", "late")
}

// restarted waits until another process is the driver, and is healthy.
func (c *trial) restarted(before int64) {
	c.t.Helper()
	c.h.Eventually("the driver is restarted", func() error {
		if d := c.status(); d.GetPid() == 0 || d.GetPid() == before || !d.GetHealthy() {
			return fmt.Errorf("process %d, was %d: %s", d.GetPid(), before, d.GetMessage())
		}
		return nil
	})
	c.h.AwaitDrivers()
}

// stopWhileDown takes the driver's program away and kills the driver. The volume stays claimed as long as it is
// mounted, and is released when the driver is back.
func stopWhileDown(c *trial) {
	c.volume("data", "")
	c.h.Run("workload", "start", c.workload("w", "data", ""))
	before := c.status().GetPid()
	check.NoError(c.t, os.Rename(c.program, c.program+".away"))
	c.kill()
	c.h.Eventually("the driver is down", func() error {
		if d := c.status(); d.GetHealthy() || d.GetPid() == before {
			return fmt.Errorf("process %d, healthy %t", d.GetPid(), d.GetHealthy())
		}
		return nil
	})
	stopped := c.background("workload", "stop", "w")
	c.h.Eventually("the stop is retried", func() error {
		if got := c.h.Run("workload", "status", "w"); !strings.Contains(got, "stopping") {
			return errors.New(got)
		}
		return nil
	})
	if s := check.Must(c.h.Status())(c.t); s.GetClaims() != 1 || len(c.h.VolumeMounts()) == 0 {
		c.t.Errorf("while the driver is down there are %d claims and mounts %q", s.GetClaims(), c.h.VolumeMounts())
	}
	check.NoError(c.t, os.Rename(c.program+".away", c.program))
	check.NoError(c.t, stopped())
	c.h.NothingInUse()
	c.h.AwaitDrivers()
}

// kill is a call in which the driver is killed.
type kill struct {
	rpc        string
	capability string
	// prepare what the command needs; command makes the call; undo what it made.
	prepare func(c *trial)
	command func(c *trial) []string
	undo    func(c *trial)
}

func kills() []kill {
	nothing := func(*trial) {}
	volume := func(c *trial) { c.volume("data", "") }
	started := func(c *trial) {
		volume(c)
		c.h.Run("workload", "start", c.workload("w", "data", ""))
	}
	start := func(c *trial) []string { return []string{"workload", "start", c.workload("w", "data", "")} }
	stop := func(*trial) []string { return []string{"workload", "stop", "w"} }
	stopped := func(c *trial) { c.h.Run("workload", "stop", "w") }
	create := func(c *trial) []string { return []string{"volume", "create", c.spec("data", writer, files, "")} }
	snap := func(*trial) []string { return []string{"volume", "snapshot", "create", "data", "snap"} }
	return []kill{
		{"CreateVolume", "CREATE_DELETE_VOLUME", nothing, create, func(c *trial) { c.volumes = append(c.volumes, "data") }},
		{"ControllerPublishVolume", "PUBLISH_UNPUBLISH_VOLUME", volume, start, stopped},
		{"NodeStageVolume", "node STAGE_UNSTAGE_VOLUME", volume, start, stopped},
		{"NodePublishVolume", "", volume, start, stopped},
		{"NodeUnpublishVolume", "", started, stop, nothing},
		{"NodeUnstageVolume", "node STAGE_UNSTAGE_VOLUME", started, stop, nothing},
		{"ControllerUnpublishVolume", "PUBLISH_UNPUBLISH_VOLUME", started, stop, nothing},
		{"CreateSnapshot", "CREATE_DELETE_SNAPSHOT", volume, snap, func(c *trial) {
			c.h.Run("volume", "snapshot", "delete", c.id, c.snap())
		}},
		{"ControllerExpandVolume", "EXPAND_VOLUME", volume, func(c *trial) []string {
			if c.size != "" {
				return []string{"volume", "expand", "data", "12GiB"}
			}
			return []string{"volume", "expand", "data", "80MiB"}
		}, nothing},
		{"DeleteVolume", "CREATE_DELETE_VOLUME", volume, func(*trial) []string {
			return []string{"volume", "delete", "data"}
		}, func(c *trial) { c.forget("data") }},
	}
}

// killedIn kills the driver when the call has arrived and nothing is done, and then when it is done and not answered.
// The command succeeds, or leaves nothing in use and succeeds when it is repeated.
func killedIn(c *trial, k kill) {
	if k.capability != "" && !c.can[k.capability] {
		c.result.missing = "no `" + strings.TrimPrefix(k.capability, "node ") + "`"
		return
	}
	k.at(c, "arrived", faultydriver.Before)
	if words := c.once[k.rpc]; words != "" {
		k.stuck(c, words)
		return
	}
	k.at(c, "done", faultydriver.After)
}

// fresh is the cell on a host of its own.
func (c *trial) fresh() *trial {
	return &trial{rig: newRig(c.t, c.driver, c.way), t: c.t, row: c.row, id: front}
}

// arm makes the next call of an RPC kill the driver.
func (c *trial) arm(rpc string, fault func(func()) faultydriver.Fault) (pid int64, struck chan struct{}) {
	c.t.Helper()
	pid, struck = c.status().GetPid(), make(chan struct{})
	c.front.Script(rpc, fault(func() {
		_ = unix.Kill(int(pid), unix.SIGKILL)
		c.front.DropConnections()
		close(struck)
	}))
	return pid, struck
}

// at kills the driver at one instant of the call, on a host of its own: the agent pauses longer before each restart of
// the same driver.
func (k kill) at(cell *trial, when string, fault func(func()) faultydriver.Fault) {
	c := cell.fresh()
	k.prepare(c)
	args := k.command(c)
	before, struck := c.arm(k.rpc, fault)
	got := c.h.Try(args...)
	select {
	case <-struck:
	default:
		c.t.Fatalf("%s, %s: the call was never made, and pannier %s said %s%s", k.rpc, when, strings.Join(args, " "),
			got.Stdout, got.Stderr)
	}
	c.restarted(before)
	if words := c.lost[k.rpc]; words != "" {
		cell.result.missing = "killed, it answers “" + words + "”"
		if got.Code == 0 || !strings.Contains(got.Stderr, words) {
			c.t.Errorf("%s, %s: exit code %d, and not the reason %q:\n%s", k.rpc, when, got.Code, words, got.Stderr)
		}
		c.end()
		return
	}
	for try := 1; got.Code != 0 && (k.rpc != "DeleteVolume" || got.Code != 3); try++ {
		if try == 3 {
			c.t.Fatalf("%s, %s: pannier %s, repeated: exit code %d\n%s", k.rpc, when, strings.Join(args, " "), got.Code,
				got.Stderr)
		}
		c.t.Logf("%s, %s: pannier %s: exit code %d", k.rpc, when, strings.Join(args, " "), got.Code)
		if args[0] == "workload" {
			c.h.NothingInUse()
		}
		got = c.h.Try(args...)
	}
	k.undo(c)
	c.end()
}

// stuck kills a driver when its work is done, whose call then fails whenever it is repeated: the volume stays claimed,
// the driver's words are shown, and the release goes on when the call can succeed.
func (k kill) stuck(cell *trial, words string) {
	cell.result.missing = "`" + k.rpc + "`, repeated, answers “" + words + "”; the volume stays claimed"
	c := cell.fresh()
	k.prepare(c)
	mounts := c.h.VolumeMounts()
	before, _ := c.arm(k.rpc, faultydriver.After)
	ended := c.background(k.command(c)...)
	c.restarted(before)
	c.h.Eventually("the driver's words are shown", func() error {
		if got := c.h.Run("workload", "status", "w"); !strings.Contains(got, words) {
			return errors.New(got)
		}
		return nil
	})
	if s := check.Must(c.h.Status())(c.t); s.GetClaims() != 1 {
		c.t.Errorf("%d claims of a volume whose release is not certain", s.GetClaims())
	}
	for _, path := range mounts {
		check.NoError(c.t, unix.Mount("tmpfs", path, "tmpfs", 0, "")) // for the driver to unmount
	}
	check.NoError(c.t, ended())
	c.end()
}
