package crash

import (
	"testing"
)

// around kills each component before a command and after it.
func (p *rigs) around(t *testing.T, m *matrix) {
	type what struct {
		who     string
		command string
		before  bool
	}
	var all []what
	for _, who := range p.everyone() {
		for _, command := range []string{"start", "stop"} {
			all = append(all, what{who, command, true}, what{who, command, false})
		}
	}
	for _, w := range few(12, all) {
		when := "after"
		if w.before {
			when = "before"
		}
		m.add(t, w.who+"/"+when+":"+w.command, family(t)+": "+w.who+" killed "+when+" a "+w.command, func(t *testing.T) {
			p.take(t).aroundCommand(t, w.who, w.command, w.before)
		})
	}
}

// everyone lists the components that the random cases may kill.
func (k kind) everyone() []string {
	if k.mesh {
		return append([]string{"host", "consul"}, meshPlugins...)
	}
	return []string{"host", "bridge", "driver"}
}

func (r *rig) aroundCommand(t *testing.T, who, name string, before bool) {
	if name == "stop" {
		r.h.Run("workload", "start", r.h.Path(workloadSpec))
	}
	down := []string{who}
	if before {
		r.kill(r.pids(t), down)
	}
	cmd := r.run(t, "workload", name, r.h.Path(workloadSpec))
	if before {
		r.restart(down)
	}
	if <-cmd.done; name == "start" && r.forgets && who == "driver" && !cmd.ProcessState.Success() {
		r.h.NothingInUse()
		cmd = r.run(t, "workload", name, r.h.Path(workloadSpec))
	}
	cmd.succeeds(t)
	if !before {
		r.kill(r.pids(t), down)
		r.restart(down)
	}
	if name == "start" {
		r.equals(t, "after the start", r.running)
		r.h.Run("workload", "stop", "w")
	}
	r.equals(t, "after the stop", r.stopped)
}
