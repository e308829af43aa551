package crash

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestMatrix kills everything at every instant. The end state must be the same as without the kill.
func TestMatrix(t *testing.T) {
	m := &matrix{}
	t.Cleanup(m.print)
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			p := &rigs{kind: k, t: t}
			t.Run("start", func(t *testing.T) { p.each(t, m, starts(k), (*rig).start) })
			t.Run("stop", func(t *testing.T) { p.each(t, m, stops(k), (*rig).stop) })
			t.Run("around", func(t *testing.T) { p.around(t, m) })
			t.Run("run", func(t *testing.T) { p.runs(t, m) })
			t.Run("volume", func(t *testing.T) { p.volumes(t, m) })
			t.Run("chance", func(t *testing.T) { p.chances(t, m) })
			if k.command != nil {
				p := &rigs{kind: k, t: t, reboots: true}
				t.Run("reboot", func(t *testing.T) { p.machines(t, m) })
			}
		})
	}
	t.Run(inMesh.name, func(t *testing.T) { t.Parallel(); meshed(t, m) })
}

// each runs the cases of a family, or a sample of them.
func (p *rigs) each(t *testing.T, m *matrix, cases []crash, run func(r *rig, t *testing.T, c crash)) {
	for _, c := range p.sample(cases) {
		m.add(t, c.String(), family(t)+": "+c.described(), func(t *testing.T) { run(p.take(t), t, c) })
	}
}

// sample drops cases for which make test has no time: it keeps every instant within the host with
// the bundled driver, and a few of the rest.
func (p *rigs) sample(cases []crash) []crash {
	rng := rand.New(rand.NewPCG(*seed, uint64(len(cases))))
	return slices.DeleteFunc(slices.Clone(cases), func(c crash) bool {
		return !*full && (p.name != "local" || c.point == "") && rng.IntN(p.oneIn()) != 0
	})
}

// oneIn is the denominator of the sample in make test.
func (k kind) oneIn() int {
	if k.mesh {
		return 10
	}
	return 24
}

// few is for families of which make test runs one in n cases.
func few[T any](n int, all []T) []T {
	rng := rand.New(rand.NewPCG(*seed, uint64(len(all))))
	return slices.DeleteFunc(slices.Clone(all), func(T) bool { return !*full && rng.IntN(n) != 0 })
}

// family is a test's name without that of the matrix.
func family(t *testing.T) string { return t.Name()[strings.Index(t.Name(), "/")+1:] }

// together lists the components that are killed at one time.
var together = [][]string{
	{"host"},
	{"bridge"},
	{"driver"},
	{"host", "bridge"},
	{"host", "driver"},
	{"bridge", "driver"},
	{"host", "bridge", "driver"},
	{}, // only the connection is lost
}

func cases(points []string, rpcs []string) (out []crash) {
	for _, p := range points {
		out = append(out, crash{who: []string{"host"}, point: p})
	}
	for _, rpc := range rpcs {
		for _, who := range together {
			if len(who) > 0 {
				out = append(out, crash{who: who, rpc: rpc})
			}
			out = append(out, crash{who: who, rpc: rpc, worked: true})
		}
	}
	return out
}

func of(step string, points ...string) (out []string) {
	for _, p := range points {
		out = append(out, step+":"+p)
	}
	return out
}

// starts are all instants of a start.
func starts(k kind) []crash {
	if k.mesh {
		return meshStarts()
	}
	do := []string{"intended", "called", "noted"}
	points, rpcs := append(of("workload", "begun"), of("claim", do...)...), []string(nil)
	if k.attach {
		points = slices.Concat(points, of("attach", do...), of("attachment", "saved", "saved#2"))
		rpcs = append(rpcs, "ControllerPublishVolume")
	}
	points = slices.Concat(points, of("stage", do...), of("staging", "saved", "saved#2", "saved#3"), of("publish", do...),
		of("workload", "running"))
	return cases(points, append(rpcs, "NodeStageVolume", "NodePublishVolume"))
}

// stops are all instants of a stop.
func stops(k kind) []crash {
	if k.mesh {
		return meshStops()
	}
	undo := []string{"undo", "undone", "forgotten"}
	points := slices.Concat(of("workload", "stopping", "ended"), of("publish", undo...), of("stage", undo...),
		of("staging", "saved", "saved#2"))
	rpcs := []string{"NodeUnpublishVolume", "NodeUnstageVolume"}
	if k.attach {
		points = slices.Concat(points, of("attach", undo...), of("attachment", "saved"))
		rpcs = append(rpcs, "ControllerUnpublishVolume")
	}
	points = slices.Concat(points, of("claim", undo...), of("freed", "advance", "advanced"), of("workload", "gone"))
	return cases(points, rpcs)
}

func (r *rig) start(t *testing.T, c crash) {
	crashed := r.arm(t, c)
	cmd := r.run(t, "workload", "start", r.h.Path(workloadSpec))
	struck(t, c.described(), crashed, cmd)
	r.restart(c.who)
	if <-cmd.done; r.forgets && slices.Contains(c.who, "driver") && !cmd.ProcessState.Success() {
		// The driver has forgotten what it did: the start may fail. Then nothing may be left of it,
		// and it must work when it is repeated.
		r.h.NothingInUse()
		r.equals(t, "after the failed start", r.stopped)
		cmd = r.run(t, "workload", "start", r.h.Path(workloadSpec))
	}
	cmd.succeeds(t)
	r.equals(t, "after the start", r.running)
	r.h.Run("workload", "stop", "w")
	r.equals(t, "after the stop", r.stopped)
}

func (r *rig) stop(t *testing.T, c crash) {
	r.h.Run("workload", "start", r.h.Path(workloadSpec))
	crashed := r.arm(t, c)
	cmd := r.run(t, "workload", "stop", "w")
	struck(t, c.described(), crashed, cmd)
	r.restart(c.who)
	cmd.succeeds(t)
	r.equals(t, "after the stop", r.stopped)
}
