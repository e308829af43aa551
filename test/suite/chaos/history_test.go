package chaos

import (
	"bufio"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/pannier/pannier/test/lib/testhost"
)

// late is how long after its answers a stopped agent may still act: log that its lease has ended,
// or finish a call whose caller has gone.
const late = 10 * time.Second

// histories returns the history of each volume. lost are the times at which nodes lost their
// leases.
func (l *load) histories(lost map[string][]time.Time) map[string]*history {
	all := map[string]*history{}
	for _, v := range l.volumes {
		all[v.id] = &history{lives: map[string]life{}, forced: map[string]bool{}}
		for _, word := range l.vouched {
			all[v.id].forced[word.node] = true
		}
	}
	for id, ops := range l.ops {
		all[id].ops = slices.Clone(ops)
	}
	for _, c := range l.unanswered {
		h := all[c.volume]
		if c.in {
			h.ins = append(h.ins, l.at(c.call))
		} else {
			h.outs = append(h.outs, l.at(c.call))
		}
	}
	for _, r := range l.runs {
		h := all[r.volume.id]
		if r.out == done {
			h.ops = append(h.ops, l.op(r.claim(), done, r.started, r.answered))
		}
		// A stop that reports success ends the workload's history: nothing may follow.
		h.lives[r.id] = life{
			start: r.claim(), unanswered: r.out == unknown,
			started: l.at(r.started), mayGo: l.at(l.mayGo(r, lost[r.on.name])), over: l.at(r.ended),
		}
	}
	for _, h := range all {
		slices.Sort(h.ins)
		slices.Sort(h.outs)
	}
	return all
}

// mayGo is the earliest time at which a workload's claim may be released: when it is stopped, or
// before that if its start failed, its node lost its lease, or the volume was detached.
func (l *load) mayGo(r run, lost []time.Time) time.Time {
	if r.out == unknown && !r.kept {
		return r.started
	}
	from := r.stop
	earlier := func(at time.Time) {
		if at.Before(from) {
			from = at
		}
		if from.Before(r.started) {
			from = r.started
		}
	}
	for _, at := range lost {
		if at.After(r.started) {
			earlier(at)
		}
	}
	for _, d := range l.detaches {
		if d.volume == r.volume.id && d.node == r.on.name && !d.over.Before(r.started) {
			earlier(d.asked)
		}
	}
	return from
}

// check verifies that each volume's history is linearizable, and saves those that are not in the
// folder keep.
func check(t *testing.T, histories map[string]*history, keep string) {
	t.Helper()
	for id, h := range histories {
		began := time.Now()
		model := h.ledger()
		result, info := porcupine.CheckOperationsVerbose(model, h.ops, testhost.Wait)
		t.Logf("volume %s: %d operations, %d claims, linearizable: %s, in %v", id, len(h.ops), len(h.lives), result,
			time.Since(began).Round(time.Millisecond))
		switch result {
		case porcupine.Illegal:
			t.Errorf("the history of volume %s is not linearizable: see %s", id, keep)
		case porcupine.Unknown:
			t.Errorf("volume %s: whether its history is linearizable was not found out within %v: see %s", id, testhost.Wait,
				keep)
		default:
			continue
		}
		if err := os.WriteFile(keep+"/history-"+id, []byte(h.String()), 0o600); err != nil {
			t.Error(err)
		}
		if err := porcupine.VisualizePath(model, info, keep+"/history-"+id+".html"); err != nil {
			t.Error(err)
		}
	}
}

// since is in the log's line about a lease that is over: when it ended, by CLOCK_BOOTTIME.
var since = regexp.MustCompile(`since="?([0-9.]+)s after boot`)

// lostLeases returns the times at which a node lost its lease, read from its agent's log.
func lostLeases(t *testing.T, h *testhost.Host) (all []time.Time) {
	t.Helper()
	f, err := os.Open(h.Path("agent.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		if !strings.Contains(lines.Text(), "the lease on this node's claims is over") {
			continue
		}
		found := since.FindStringSubmatch(lines.Text())
		if found == nil {
			t.Errorf("the log of %s does not say since when the lease is over: %s", h.Name, lines.Text())
			continue
		}
		seconds, err := strconv.ParseFloat(found[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		ago := time.Duration(boottime()) - time.Duration(seconds*float64(time.Second))
		all = append(all, time.Now().Add(-ago-time.Millisecond)) // the log has rounded it
	}
	if err := lines.Err(); err != nil {
		t.Errorf("read the log of %s: %v", h.Name, err)
	}
	return all
}
