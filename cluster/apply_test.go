package cluster_test

import (
	"errors"
	"testing"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/clustertest"
)

// TestWithCall repeats a call under the same key. Commands that were applied return the same result again,
// including a command that the call made twice, and later changes of other callers are kept.
func TestWithCall(t *testing.T) {
	t.Parallel()
	c := clustertest.Form(t, 3, clustertest.Options{})
	ref := volume("v").VolumeRef
	for name, to := range map[string]cluster.Ledger{
		"leader":   c.WaitLeader(t),
		"follower": c.Follower(t), "client": c.Client(),
	} {
		attempt := func() {
			t.Helper()
			ctx := cluster.WithCall(within(t), "a call at the "+name)
			for _, again := range []bool{false, true} {
				if made, err := cluster.Apply(ctx, to,
					&command.RegisterVolume{Volume: volume("v")}); err != nil || !made.Created {
					t.Errorf("%s: registered, again %t: created %t, %v", name, again, made.Created, err)
				}
				if again {
					break
				}
				if _, err := cluster.DeregisterVolume(ctx, to, ref, false); err != nil {
					t.Errorf("%s: deregistered: %v", name, err)
				}
			}
		}
		attempt()
		if _, err := cluster.DeregisterVolume(cluster.WithCall(within(t), "another call at the "+name), to, ref,
			false); err != nil {
			t.Errorf("%s: it was not registered the second time: %v", name, err)
		}
		attempt()
		if _, err := cluster.DeregisterVolume(within(t), to, ref, false); !errors.Is(err, claim.ErrVolumeNotFound) {
			t.Errorf("%s: the call has done again what it had done before: %v", name, err)
		}
	}
}
