package crash

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"
)

// change is a command that changes a volume, and may be repeated until it works.
type change struct {
	name   string
	rpcs   []string
	points []string
	args   func(r *rig, t *testing.T) []string
	// before and after make what it needs and remove what it left.
	before, after func(r *rig, t *testing.T)
	gone          bool // NotFound means that an earlier attempt succeeded
}

func changes() []change {
	nothing := func(*rig, *testing.T) {}
	create := func(r *rig, _ *testing.T) { r.h.Run("volume", "create", r.writeVolume("made", small, "")) }
	remove := func(r *rig, _ *testing.T) { r.h.Run("volume", "delete", "made") }
	snapshot := func(r *rig, _ *testing.T) {
		// Each has a name, and so an id, of its own: a driver that has died of a call twice is not called again.
		r.snapshots++
		r.h.Run("volume", "snapshot", "create", "data", fmt.Sprint("snap-", r.snapshots))
	}
	forget := func(r *rig, t *testing.T) { r.h.Run("volume", "snapshot", "delete", front, r.snapshot(t)) }
	return []change{
		{
			name: "create", rpcs: []string{"CreateVolume"}, points: of("volume", "put",
				"written"), before: nothing, after: remove,
			args: func(r *rig, _ *testing.T) []string {
				return []string{"volume", "create", r.writeVolume("made", small, "")}
			},
		},
		{
			name: "delete", rpcs: []string{"DeleteVolume"}, points: of("volume",
				"deleted"), before: create, after: nothing, gone: true,
			args: func(*rig, *testing.T) []string { return []string{"volume", "delete", "made"} },
		},
		{
			name: "snapshot", rpcs: []string{"CreateSnapshot"}, before: nothing, after: forget,
			args: func(*rig, *testing.T) []string { return []string{"volume", "snapshot", "create", "data", "snap"} },
		},
		{
			name: "forget", rpcs: []string{"DeleteSnapshot"}, before: snapshot, after: nothing,
			args: func(r *rig, t *testing.T) []string {
				return []string{"volume", "snapshot", "delete", front, r.snapshot(t)}
			},
		},
		{
			name: "expand", rpcs: []string{"ControllerExpandVolume", "NodeExpandVolume"}, points: of("volume", "put", "written"),
			before: func(r *rig, t *testing.T) {
				// xfs: growing a mounted ext4 takes CAP_SYS_RESOURCE, which a container's root may
				// lack.
				r.h.Run("volume", "create", r.writeVolume("made", "320MiB", "mount_options {\n  fs_type = \"xfs\"\n}"))
				r.h.Run("workload", "start", r.h.Write("grows.hcl", fmt.Sprintf(
					"workload %q {\n  volume %q {\n    source      = %q\n    destination = %q\n  }\n}\n", "grows", "made", "made",
					r.h.Path("mnt"))))
			},
			args: func(*rig, *testing.T) []string { return []string{"volume", "expand", "made", "400MiB"} },
			after: func(r *rig, t *testing.T) {
				r.h.Run("workload", "stop", "grows")
				remove(r, t)
			},
		},
	}
}

// done reports whether the command has made its change.
func (ch change) done(cmd *command) bool {
	return cmd.ProcessState.Success() || ch.gone && cmd.ProcessState.ExitCode() == 3
}

// snapshot is the id of the only one.
func (r *rig) snapshot(t *testing.T) string {
	t.Helper()
	var list struct {
		Snapshots []struct {
			SnapshotID string `json:"snapshot_id"`
		}
	}
	r.decode(&list, "volume", "snapshot", "list", "-o", "json", "-driver", front)
	if len(list.Snapshots) != 1 {
		raw, _ := json.Marshal(list)
		t.Fatalf("there should be one snapshot: %s", raw)
	}
	return list.Snapshots[0].SnapshotID
}

// volumes kills in the middle of each change of a volume. The command is then repeated, and must
// end in the same state as without the crash.
func (p *rigs) volumes(t *testing.T, m *matrix) {
	for _, ch := range changes() {
		if p.name == "hostpath" && ch.name == "expand" {
			continue // it does not expand volumes in use
		}
		for _, c := range few(24, cases(ch.points, ch.rpcs)) {
			m.add(t, ch.name+":"+c.String(), family(t)+": "+ch.name+": "+c.described(), func(t *testing.T) {
				p.take(t).change(t, ch, c)
			})
		}
	}
}

func (r *rig) change(t *testing.T, ch change, c crash) {
	if r.changed[ch.name] == nil {
		ch.before(r, t)
		r.h.Run(ch.args(r, t)...)
		r.changed[ch.name] = r.look()
		ch.after(r, t)
	}
	ch.before(r, t)
	args := ch.args(r, t)
	crashed := r.arm(t, c)
	cmd := r.run(t, args...)
	struck(t, c.described(), crashed, cmd)
	r.restart(c.who)
	<-cmd.done
	for try := 0; !ch.done(cmd); try++ {
		if try == 3 {
			t.Fatalf("%s, repeated: %s\n%s", cmd, cmd.state(), cmd.output)
		}
		r.settle() // such a command does not wait for a driver
		cmd = r.run(t, args...)
		<-cmd.done
	}
	_ = os.Remove(r.h.Path("crash"))
	r.equals(t, "after the "+ch.name, r.changed[ch.name])
	ch.after(r, t)
	r.equals(t, "in the end", r.stopped)
}
