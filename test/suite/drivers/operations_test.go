package drivers

import (
	"fmt"
	"strings"
)

// row of the matrix.
type row struct {
	name string
	run  func(c *trial)
	// slow rows run with -full only.
	slow bool
}

func operations() []row {
	return []row{
		{name: "create, repeated", run: create},
		{name: "register", run: register},
		{name: "list at the driver", run: list},
		{name: "write and read back", run: func(c *trial) {
			c.volume("data", "")
			c.write("data", "kept")
			c.h.NothingInUse()
			c.reads("data", "kept")
		}},
		{name: "second writer refused", run: func(c *trial) {
			c.volume("data", "")
			c.h.Run("workload", "start", c.workload("first", "data", ""))
			c.h.Refused(4, []string{`"data"`, `"first"`}, "workload", "start", c.workload("second", "data", ""))
			c.h.Run("workload", "stop", "first")
		}},
		{name: "shared by two workloads", run: share},
		{name: "read-only", run: readOnly},
		{name: "block device", run: block},
		{name: "expand, not in use", run: func(c *trial) { expand(c, false) }},
		{name: "expand, in use", run: func(c *trial) { expand(c, true) }},
		{name: "snapshot", run: snapshot},
		{name: "restore", run: restore},
		{name: "clone", run: clone},
		{name: "usage", run: usage},
		{name: "ephemeral volume", run: ephemeral},
		{name: "stop", run: func(c *trial) {
			c.volume("data", "")
			spec := c.workload("w", "data", "")
			c.h.Run("workload", "start", spec)
			if len(c.h.VolumeMounts()) == 0 {
				c.t.Error("nothing is mounted for a workload that runs")
			}
			c.h.Run("workload", "stop", spec)
			c.h.Run("workload", "stop", spec)
		}},
		{name: "delete", run: remove},
	}
}

func create(c *trial) {
	spec := c.spec("data", writer, files, "")
	c.create("data", spec)
	first := c.externalID("data")
	c.h.Run("volume", "create", spec)
	if again := c.externalID("data"); again != first {
		c.t.Errorf("create, repeated, made %q besides %q", again, first)
	}
}

func register(c *trial) {
	c.volume("data", "")
	c.write("data", "before")
	id := c.externalID("data")
	c.h.Run("volume", "deregister", "data")
	c.h.Run("volume", "register", c.spec("data", writer, files, `external_id = "`+id+`"`))
	c.reads("data", "before")
}

func list(c *trial) {
	c.volume("data", "")
	show := []string{"volume", "list", "-driver", c.id, "-external"}
	if c.lacks("LIST_VOLUMES", show...) {
		c.h.AwaitDrivers() // one may have ended of it
		return
	}
	if got := c.h.Run(show...); !strings.Contains(got, c.externalID("data")) {
		c.t.Errorf("the driver's list has no %s:\n%s", c.externalID("data"), got)
	}
}

func share(c *trial) {
	c.create("data", c.spec("data", "single-node-multi-writer", files, ""))
	c.h.Run("workload", "start", c.workload("first", "data", ""))
	c.write("data", "shared")
	c.h.Run("workload", "stop", "first")
	c.reads("data", "shared")
}

func readOnly(c *trial) {
	c.volume("data", "")
	c.write("data", "kept")
	spec := c.workload("r", "data", "read_only = true")
	if got := c.h.Run("workload", "run", spec, "--", "cat", c.h.Path("mnt/file")); got != "kept\n" {
		c.t.Errorf("a reader reads %q", got)
	}
	r := c.h.Try("workload", "run", spec, "--", "touch", c.h.Path("mnt/other"))
	if r.Code == 0 || !strings.Contains(r.Stderr, "Read-only") {
		c.t.Errorf("a write through a read-only mount: exit code %d\n%s", r.Code, r.Stderr)
	}
}

func block(c *trial) {
	spec := c.spec("raw", writer, "block-device", "")
	device := c.h.Path("device")
	w := c.h.Write("w.hcl", fmt.Sprintf(
		"workload %q {\n  volume %q {\n    source      = %q\n    destination = %q\n  }\n}\n", "w", "raw", "raw", device))
	if c.refuses[c.row] != "" {
		command := []string{"volume", "create", spec}
		if c.refusesLate {
			c.create("raw", spec)
			command = []string{"workload", "start", w}
		}
		c.lacks("", command...)
		if c.refusesLate {
			c.result.missing = "it publishes a folder, which the host refuses"
		}
		return
	}
	c.create("raw", spec)
	c.h.Run("workload", "run", w, "--", "sh", "-c",
		"test -b "+device+" && printf block | dd of="+device+" conv=notrunc,fsync status=none")
	if got := c.h.Run("workload", "run", w, "--", "head", "-c", "5", device); got != "block" {
		c.t.Errorf("read %q from the device", got)
	}
}

func expand(c *trial, inUse bool) {
	from, size, fs := "320MiB", int64(400<<20), ""
	if c.size != "" {
		from, size = c.size, 12<<30
	}
	// xfs: a mounted ext4 grows only with CAP_SYS_RESOURCE, which a container's root may not have.
	if !c.folders {
		fs = "mount_options {\n  fs_type = \"xfs\"\n}\n"
	}
	c.volume("data", fmt.Sprintf("capacity_min = %q\ncapacity_max = \"20GiB\"\n%s", from, fs))
	c.write("data", "before")
	if inUse {
		c.h.Run("workload", "start", c.workload("holder", "data", ""))
		defer c.h.Run("workload", "stop", "holder")
	}
	grow := []string{"volume", "expand", "data", fmt.Sprint(size)}
	if c.lacks("EXPAND_VOLUME", grow...) {
		return
	}
	if inUse && c.can["OFFLINE"] && !c.can["ONLINE"] {
		c.result.missing = "only `OFFLINE`"
		c.h.Refused(4, []string{`"holder"`, "only while nobody uses it"}, grow...)
		return
	}
	c.h.Run(grow...)
	var v struct{ Volume struct{ Capacity int64 } }
	c.decode(&v, "volume", "status", "data")
	if v.Volume.Capacity != size {
		c.t.Errorf("the volume has %d bytes, want %d", v.Volume.Capacity, size)
	}
	if !inUse {
		c.reads("data", "before")
	}
}

// snap takes a snapshot of data, and returns its id at the driver.
func (c *trial) snap() string {
	c.t.Helper()
	var made struct {
		Snapshot struct {
			SnapshotID string `json:"snapshot_id"`
		}
	}
	c.decode(&made, "volume", "snapshot", "create", "data", "snap")
	return made.Snapshot.SnapshotID
}

func snapshot(c *trial) {
	c.volume("data", "")
	if c.lacks("CREATE_DELETE_SNAPSHOT", "volume", "snapshot", "create", "data", "snap") {
		return
	}
	id := c.snap()
	if again := c.snap(); again != id {
		c.t.Errorf("a repeated snapshot is %q, and was %q", again, id)
	}
	show := []string{"volume", "snapshot", "list", "-driver", c.id}
	if got := c.h.Run(show...); !strings.Contains(got, id) {
		c.t.Errorf("the driver's list has no snapshot %s:\n%s", id, got)
	}
	c.h.Run("volume", "snapshot", "delete", c.id, id)
	if got := c.h.Run(show...); strings.Contains(got, id) {
		c.t.Errorf("the driver's list has snapshot %s, which is deleted:\n%s", id, got)
	}
}

func restore(c *trial) {
	c.volume("data", "")
	if c.lacks("CREATE_DELETE_SNAPSHOT", "volume", "snapshot", "create", "data", "snap") {
		return
	}
	c.write("data", "one")
	id := c.snap()
	c.write("data", "two")
	c.volume("restored", `snapshot_id = "`+id+`"`)
	c.reads("restored", "one")
	c.reads("data", "two")
	c.h.Run("volume", "snapshot", "delete", c.id, id)
}

func clone(c *trial) {
	c.volume("data", "")
	c.write("data", "one")
	more := `clone_id = "` + c.externalID("data") + `"`
	if c.lacks("CLONE_VOLUME", "volume", "create", c.spec("cloned", writer, files, more)) {
		return
	}
	c.volume("cloned", more)
	c.write("data", "two")
	c.reads("cloned", "one")
}

func usage(c *trial) {
	c.volume("data", "")
	c.h.Run("workload", "start", c.workload("w", "data", ""))
	defer c.h.Run("workload", "stop", "w")
	var v struct {
		Usage *struct {
			BytesTotal int64 `json:"bytes_total"`
		}
	}
	c.decode(&v, "volume", "status", "data")
	switch {
	case !c.can["node GET_VOLUME_STATS"]:
		c.result.missing = "no `GET_VOLUME_STATS`"
		if v.Usage != nil {
			c.t.Errorf("usage %v of a driver that reports none", v.Usage)
		}
	case v.Usage == nil || v.Usage.BytesTotal == 0:
		c.t.Errorf("the volume's usage is %v", v.Usage)
	}
}

// ephemeral runs a workload with a volume that the driver makes for it, twice: each run has its own.
func ephemeral(c *trial) {
	spec := c.h.Write("w.hcl", fmt.Sprintf(
		"workload %q {\n  volume %q {\n    driver      = %q\n    destination = %q\n    read_only   = %t\n  }\n}\n", "w", "data", c.id,
		c.h.Path("mnt"), c.onlyEphemeral))
	command := []string{
		"workload", "run", spec, "--", "sh", "-c", "test ! -e " + c.h.Path("mnt/file") + " && echo own > " + c.h.Path("mnt/file"),
	}
	if c.refuses[c.row] != "" {
		c.lacks("", "workload", "start", spec)
		c.h.Run("workload", "stop", "-force", "w") // its NodeUnpublishVolume fails where nothing is mounted
		return
	}
	if c.onlyEphemeral { // each workload sees the same, read-only
		command = []string{
			"workload", "run", spec, "--", "sh", "-c", "test -e " + c.h.Path("mnt/given") + " && ! touch " + c.h.Path("mnt/file"),
		}
	}
	for range 2 {
		c.h.Run(command...)
		c.h.NothingInUse()
	}
}

func remove(c *trial) {
	c.volume("data", "")
	id := c.externalID("data")
	c.h.Run("workload", "start", c.workload("w", "data", ""))
	c.h.Refused(4, []string{"data", `"w"`}, "volume", "delete", "data")
	c.h.Run("workload", "stop", "w")
	c.h.Run("volume", "delete", "data")
	c.forget("data")
	c.h.Refused(3, []string{"data"}, "volume", "status", "data")
	if c.can["LIST_VOLUMES"] && c.refuses["list at the driver"] == "" {
		if got := c.h.Run("volume", "list", "-driver", c.id, "-external"); strings.Contains(got, id) {
			c.t.Errorf("the driver has %s, which is deleted:\n%s", id, got)
		}
	}
}
