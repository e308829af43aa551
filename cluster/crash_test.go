package cluster_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clustertest"
)

// crashDir makes this test program run as a server that changes its ledger until it is killed. crashRound is
// the number of its current run.
const (
	crashDir   = "PANNIER_TEST_CRASH_DIR"
	crashRound = "PANNIER_TEST_CRASH_ROUND"
	crashers   = 8 // concurrent callers
)

// sideBySide is the number of parallel tests. They mostly wait for elections.
const sideBySide = 12

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		if err := changeUntilKilled(dir, os.Getenv(crashRound)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	check.SideBySide(sideBySide)
	// memberlist's shutdown does not wait for a probe in progress.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"))
}

// changeUntilKilled starts, ends and frees workloads, each caller with its own volume and a token, and prints
// each step that the ledger has acknowledged.
func changeUntilKilled(dir, round string) error {
	ctx := context.Background()
	n, err := cluster.Open(ctx, cluster.Config{Dir: dir, Name: "server-1", BootstrapExpect: 1})
	if err != nil {
		return err
	}
	defer n.Close()
	var out sync.Mutex
	failed := make(chan error, crashers+1)
	for g := range crashers {
		go func() {
			v := volume(fmt.Sprint("volume-", g))
			if _, err := cluster.Apply(ctx, n, &command.RegisterVolume{Volume: v}); err != nil {
				failed <- err
				return
			}
			failed <- cycle(ctx, n, v, fmt.Sprintf("%d-%s-", g, round), func(step string, i int, index uint64) {
				out.Lock()
				defer out.Unlock()
				fmt.Println(g, i, step, index)
			})
		}()
	}
	go func() {
		for ; ; time.Sleep(time.Millisecond) { // snapshots of one index in one millisecond would have one name
			if err := n.Snapshot(); err != nil {
				failed <- err
				return
			}
		}
	}()
	return <-failed
}

func cycle(ctx context.Context, n *cluster.Node, v claim.Volume, prefix string,
	acknowledged func(step string, i int, index uint64),
) error {
	free := func(c claim.Claim) error {
		_, err := cluster.Apply(ctx, n,
			&command.AdvanceClaims{Items: []command.Advance{{
				Volume: c.Volume, Workload: c.Workload, Index: c.Index,
				To: claim.Freed,
			}}})
		return err
	}
	var left []claim.Claim
	err := n.Read(ctx, func(tx *state.ReadTx) (err error) {
		left, err = tx.Claims(v.VolumeRef)
		return err
	})
	for _, c := range left { // from the previous run
		err = errors.Join(err, free(c))
	}
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		w := workload(prefix + strconv.Itoa(i))
		token := claim.Token{ID: crashToken(w), Service: "web", Consul: "default"}
		started, err := cluster.Apply(ctx, n,
			command.Start(claim.Run{Ref: w, Node: "a"}, []claim.Claim{want(v, claim.Write)}, token))
		if err != nil {
			return err
		}
		acknowledged("started", i, started.Workload.CreateIndex)
		if _, err := cluster.Apply(ctx, n, command.End(claim.Run{Ref: w})); err != nil {
			return err
		}
		acknowledged("ended", i, 0)
		if _, err := cluster.Apply(ctx, n, &command.DeleteTokens{IDs: []string{token.ID}}); err != nil {
			return err
		}
		if err := free(started.Claims[0]); err != nil {
			return err
		}
		acknowledged("freed", i, 0)
	}
}

// crashToken returns the id of a workload's token. It is the same in all runs, and unique for each workload.
func crashToken(w claim.WorkloadRef) string {
	sum := sha256.Sum256([]byte(w.ID))
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// last is the last step of a caller that was acknowledged.
type last struct {
	i     int
	step  string
	index uint64 // of the start
}

// TestKilledInMidLoad kills a real process while it changes its ledger and takes snapshots. Every
// acknowledged change is present exactly once, and nothing else is.
func TestKilledInMidLoad(t *testing.T) {
	dir := t.TempDir()
	for round := range 3 {
		acknowledged := runAndKill(t, dir, round)
		checkAcknowledged(t, dir, round, acknowledged)
	}
	// Raft's log and snapshot also contain everything without the ledger's own files.
	before := allWorkloads(t, dir)
	check.NoError(t, os.RemoveAll(filepath.Join(dir, "state")))
	if after := allWorkloads(t, dir); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("rebuilt from raft, the ledger has %d workloads instead of %d", len(after), len(before))
	}
}

func runAndKill(t *testing.T, dir string, round int) map[int]last {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashDir+"="+dir, crashRound+"="+strconv.Itoa(round))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	check.NoError(t, err)
	check.NoError(t, cmd.Start())
	seen := map[int]last{}
	lines := 0
	for scanner := bufio.NewScanner(out); scanner.Scan(); lines++ {
		if lines == 500 {
			if err := cmd.Process.Kill(); err != nil {
				t.Error(err)
			}
		}
		var g, i int
		var step string
		var index uint64
		if _, err := fmt.Sscan(scanner.Text(), &g, &i, &step, &index); err != nil {
			continue // the last line may be incomplete
		}
		if step != "started" {
			index = seen[g].index
		}
		seen[g] = last{i, step, index}
	}
	err = cmd.Wait()
	if lines <= 500 {
		t.Fatalf("the server ended by itself after %d steps: %v", lines, err)
	}
	return seen
}

func checkAcknowledged(t *testing.T, dir string, round int, acknowledged map[int]last) {
	t.Helper()
	s := clustertest.StartWith(t, cluster.Config{Dir: dir})
	err := s.Read(t.Context(), func(tx *state.ReadTx) error {
		for g, l := range acknowledged {
			name := func(i int) claim.WorkloadRef { return workload(fmt.Sprintf("%d-%d-%d", g, round, i)) }
			for i := range l.i {
				w, err := tx.Workload(name(i))
				if err != nil || w.Status != claim.Ended {
					t.Errorf("workload %s: %+v, %v", name(i), w, err)
				}
				if tokens, err := tx.TokensOf(name(i)); err != nil || len(tokens) != 0 {
					t.Errorf("workload %s has the tokens %+v, %v", name(i), tokens, err)
				}
			}
			token, err := tx.Token(crashToken(name(l.i)))
			if l.step == "started" && (err != nil || token.Workload != name(l.i) || token.CreateIndex != l.index) ||
				l.step == "freed" && err == nil {
				t.Errorf("workload %s was %s at %d: its token is %+v, %v", name(l.i), l.step, l.index, token, err)
			}
			w, err := tx.Workload(name(l.i))
			if err != nil || w.CreateIndex != l.index || l.step != "started" && w.Status != claim.Ended {
				t.Errorf("workload %s was %s at %d: %+v, %v", name(l.i), l.step, l.index, w, err)
			}
			held, err := tx.Claims(claim.VolumeRef{Namespace: "default", ID: fmt.Sprint("volume-", g)})
			if err != nil {
				return err
			}
			if len(held) > 1 || len(held) == 1 && !mayStand(held[0], l, name) || len(held) == 0 && l.step == "started" {
				t.Errorf("after %s was %s there are the claims %+v", name(l.i), l.step, held)
			}
		}
		return nil
	})
	check.NoError(t, errors.Join(err, s.Close()))
}

// mayStand reports whether a claim may exist after the last acknowledged step, because of that step or the
// one that was in progress.
func mayStand(c claim.Claim, l last, name func(int) claim.WorkloadRef) bool {
	switch l.step {
	case "started":
		return c.Workload == name(l.i) && c.Index == l.index
	case "ended":
		return c.Workload == name(l.i) && c.Index == l.index && c.State == claim.Unpublishing
	default:
		return c.Workload == name(l.i+1) && c.Index > l.index
	}
}

func allWorkloads(t *testing.T, dir string) (all []claim.Workload) {
	t.Helper()
	s := clustertest.StartWith(t, cluster.Config{Dir: dir})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := s.Read(ctx, func(tx *state.ReadTx) (err error) {
		all, _, err = tx.Workloads("", state.Page{})
		return err
	})
	check.NoError(t, errors.Join(err, s.Close()))
	return all
}
