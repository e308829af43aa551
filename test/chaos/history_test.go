package chaos

import (
	"bufio"
	"cmp"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/pannier/pannier/test/testhost"
)

// late is how much later than its answers an agent that was stopped may still do something:
// say in its log that its lease had ended, or go on with a call whose caller has left.
const late = 10 * time.Second

// histories are the operations of each volume. lost are the times at which nodes lost their leases.
func (l *load) histories(lost map[string][]time.Time) map[string][]porcupine.Operation {
	all := map[string][]porcupine.Operation{}
	for volume, ops := range l.ops {
		all[volume] = slices.Clone(ops)
	}
	for _, r := range l.runs {
		add := func(input, output any, from, to time.Time) {
			all[r.volume.id] = append(all[r.volume.id], l.op(input, output, from, to))
		}
		if r.out == unknown {
			// When nothing is left after a stop, nothing comes after that.
			add(r.claim(), unknown, r.started, r.ended)
		} else {
			add(r.claim(), done, r.started, r.answered)
		}
		add(release{r.id}, done, l.mayGo(r, lost[r.on.name]), r.ended)
		add(gone{r.id}, done, r.stop, r.ended)
	}
	return all
}

// mayGo is from when on a workload's claim may be let go of: when it is stopped; before that only
// when its start failed, its node lost its lease, or somebody detached it.
func (l *load) mayGo(r run, lost []time.Time) time.Time {
	if r.out == unknown || slices.ContainsFunc(lost, func(at time.Time) bool { return at.After(r.started) && at.Before(r.ended.Add(late)) }) {
		return r.started
	}
	from := r.stop
	for _, d := range l.detaches {
		if d.volume != r.volume.id || d.node != r.on.name || d.over.Before(r.started) {
			continue
		}
		if d.asked.Before(r.started) {
			return r.started
		}
		if d.asked.Before(from) {
			from = d.asked
		}
	}
	return from
}

// check proves that each volume's history is one of a ledger that does one thing at a time.
// It keeps the histories that are not in a folder.
func check(t *testing.T, histories map[string][]porcupine.Operation, keep string) {
	t.Helper()
	for id, ops := range histories {
		model := ledger.ToModel()
		result, info := porcupine.CheckOperationsVerbose(model, ops, testhost.Wait)
		t.Logf("volume %s: %d operations, linearizable: %s", id, len(ops), result)
		switch result {
		case porcupine.Illegal:
			t.Errorf("the history of volume %s is not linearizable: see %s", id, keep)
		case porcupine.Unknown:
			t.Errorf("volume %s: whether its history is linearizable was not found out within %v: see %s", id, testhost.Wait, keep)
		default:
			continue
		}
		slices.SortFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
		var text strings.Builder
		for _, o := range ops {
			text.WriteString(describe(o) + "\n")
		}
		if err := os.WriteFile(keep+"/history-"+id, []byte(text.String()), 0o600); err != nil {
			t.Error(err)
		}
		if err := porcupine.VisualizePath(model, info, keep+"/history-"+id+".html"); err != nil {
			t.Error(err)
		}
	}
}

// lostLeases are the times at which a node lost its lease, by its agent's log.
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
		stamp, _, _ := strings.Cut(lines.Text(), " ")
		at, err := time.Parse("2006-01-02T15:04:05.000Z0700", stamp)
		if err != nil {
			t.Errorf("the log of %s has a line without a time: %s", h.Name, lines.Text())
			continue
		}
		all = append(all, at)
	}
	if err := lines.Err(); err != nil {
		t.Errorf("read the log of %s: %v", h.Name, err)
	}
	return all
}
