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

// late is how much later than its answers an agent that was stopped says in its log that its
// lease had ended.
const late = 10 * time.Second

// histories are the operations of each volume. lost are the times at which nodes lost their leases: only
// then claims may go that nobody let go of.
func (l *load) histories(lost map[string][]time.Time) map[string][]porcupine.Operation {
	all := map[string][]porcupine.Operation{}
	for volume, ops := range l.ops {
		all[volume] = slices.Clone(ops)
	}
	for _, r := range l.runs {
		add := func(input, output any, from, to time.Time) {
			all[r.volume.id] = append(all[r.volume.id], l.op(input, output, from, to))
		}
		claim := r.claim()
		mayGo := slices.ContainsFunc(lost[r.on.name], func(at time.Time) bool { return at.After(r.started) && at.Before(r.ended.Add(late)) })
		if r.out == unknown {
			// A start that fails takes back what it has taken. When nothing is left after a stop,
			// nothing comes after that.
			add(claim, unknown, r.started, r.ended)
			mayGo = true
		} else {
			add(claim, done, r.started, r.answered)
		}
		if mayGo {
			add(release{r.id}, unknown, r.started, r.ended)
		}
		for _, d := range l.detaches {
			if d.volume == r.volume.id && d.node == r.on.name && d.asked.Before(r.ended) && (d.answered.IsZero() || d.answered.After(r.started)) {
				add(release{r.id}, unknown, d.asked, r.ended)
			}
		}
		add(release{r.id}, done, r.stop, r.ended)
		add(gone{r.id}, done, r.stop, r.ended)
	}
	return all
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
