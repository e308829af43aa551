package rotation

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clustertest"
)

// The leader is cut off at each point of a rotation. Another leader finishes the rotation, or knows nothing of it; and
// every leader can unseal all secrets meanwhile.
func TestLeaderIsKilledDuringARotation(t *testing.T) {
	t.Parallel()
	for _, cut := range []string{"before name", "after name", "after activate", "after reseal"} {
		t.Run(cut, func(t *testing.T) {
			t.Parallel()
			w := form(t)
			before := w.settled()
			w.fill("a", "b", "c")
			killed := w.leader()
			hit := killed.cutAt(cut)
			id, err := killed.keeper.Rotate(t.Context())
			if err != nil && !errors.Is(err, errCut) {
				t.Fatal(err)
			}
			<-hit
			killed.kill()
			killed.heal()
			next := w.leader()
			clustertest.Eventually(t, "the next leader opens all secrets",
				func() bool { return next.keeper.Problem() == "" && next.opens("") == nil })
			killed.start()
			w.WaitReady(t)
			if cut == "before name" {
				if after := w.settled(); after != before {
					t.Errorf("a key seals that the ledger was never told of: %s", after)
				}
				return
			}
			if after := w.settled(before); after == before || id != "" && after != id {
				t.Errorf("%s seals, and did before: %s; the new one is %s", after, before, id)
			}
		})
	}
}

// The state of the keys follows volumes that are made, removed and re-encrypted.
func TestStatusCountsWhatIsSealed(t *testing.T) {
	t.Parallel()
	w := form(t)
	first := w.settled()
	counts := func(key string, want int) {
		t.Helper()
		status, err := w.leader().keeper.Status(t.Context())
		check.NoError(t, err)
		for _, k := range status.Keys {
			if k.ID == key && k.Sealed != want || k.ID != key && k.Sealed != 0 {
				t.Errorf("%s seals %d records; want %s to seal all %d", k.ID, k.Sealed, key, want)
			}
		}
	}
	counts(first, 0)
	w.fill("a", "b") // and two signing keys
	for range 2 {
		counts(first, 4)
	}
	_, err := cluster.DeregisterVolume(t.Context(), w.leader(), claim.VolumeRef{Namespace: "default", ID: "a"}, false)
	check.NoError(t, err)
	counts(first, 3)
	second, err := w.leader().keeper.Rotate(t.Context())
	check.NoError(t, err)
	w.settled(first)
	counts(second, 3)
}

// While a server is away nothing changes, and the error says which.
func TestRotationWaitsForEveryServer(t *testing.T) {
	t.Parallel()
	w := form(t)
	before := w.settled()
	w.fill("a")
	var away *server
	for _, s := range w.servers {
		if s != w.leader() {
			away = s
		}
	}
	away.kill()
	_, err := w.leader().keeper.Rotate(t.Context())
	if !errors.Is(err, ErrNotEverywhere) || !strings.Contains(err.Error(), away.Name) ||
		!strings.Contains(err.Error(), "pannier operator raft remove-peer") {
		t.Errorf("got %v", err)
	}
	if after := w.active(); after != before {
		t.Errorf("%s seals, and did before: %s", after, before)
	}
	away.start()
	w.WaitReady(t)
	id, err := w.leader().keeper.Rotate(t.Context())
	check.NoError(t, err)
	if after := w.settled(before); after != id {
		t.Errorf("%s seals, not %s", after, id)
	}
}

// A ledger is restored whose key is lost, and one in the middle of a rotation. The key is restored on one server, and
// the rotation begins or continues.
func TestRestoreDuringARotation(t *testing.T) {
	t.Parallel()
	for name, middle := range map[string]bool{"before the change": false, "in the middle of it": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := form(t)
			first := w.settled()
			w.fill("a", "b")
			leader := w.leader()
			kept, _ := leader.sealer.Get(first)
			var saved bytes.Buffer
			save := func() {
				_, err := leader.Save(t.Context(), &saved)
				check.NoError(t, err)
			}
			if !middle {
				save()
			}
			hit := leader.cutAt("after reseal")
			second, err := leader.keeper.Rotate(t.Context())
			check.NoError(t, err)
			<-hit
			if middle {
				save() // one volume is sealed with the new key
			}
			leader.heal()
			if after := w.settled(first); after != second {
				t.Fatalf("%s seals, not %s", after, second)
			}

			clustertest.Eventually(t, "the ledger is restored", func() bool {
				_, err := w.leader().Restore(t.Context(), bytes.NewReader(saved.Bytes()), "op")
				// a busy machine lets another one lead
				if errors.Is(err, command.ErrUncertain) || errors.Is(err, command.ErrNotLeader) {
					return false
				}
				check.NoError(t, err)
				return true
			})
			for _, s := range w.servers {
				clustertest.Eventually(t, s.Name+" misses the key",
					func() bool { return strings.Contains(s.keeper.Problem(), first) })
			}
			check.NoError(t, w.servers[0].sealer.Add(kept))
			if middle {
				if after := w.settled(first); after != second {
					t.Errorf("%s seals, not %s", after, second)
				}
				return
			}
			if after := w.settled(); after != first {
				t.Errorf("%s seals, not %s", after, first)
			}
			third, err := w.leader().keeper.Rotate(t.Context())
			check.NoError(t, err)
			if after := w.settled(first); after != third {
				t.Errorf("%s seals, not %s", after, third)
			}
		})
	}
}
