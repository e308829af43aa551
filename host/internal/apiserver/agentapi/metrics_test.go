package agentapi

import (
	"testing"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clustertest"
)

// Of claims that are being released each is counted in its state, and the oldest step is told.
func TestLedgerCounts(t *testing.T) {
	n := clustertest.Start(t).Node
	for _, id := range []string{"a", "b", "c"} {
		ref := claim.VolumeRef{Namespace: claim.DefaultNamespace, ID: id}
		_, err := cluster.Apply(t.Context(), n, &command.RegisterVolume{Volume: claim.Volume{
			Definition: claim.Definition{
				VolumeRef: ref, Name: id, PluginID: "d", ExternalID: id,
				Capabilities: []claim.Capability{{AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem}},
			},
		}})
		check.NoError(t, err)
		run := claim.Run{Ref: claim.WorkloadRef{Namespace: claim.DefaultNamespace, ID: id}, Node: "n"}
		_, err = cluster.Apply(t.Context(), n, command.Start(run, []claim.Claim{{
			Volume: ref, Mode: claim.Write, AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem,
		}}))
		check.NoError(t, err)
		if id == "a" {
			continue
		}
		_, err = cluster.Apply(t.Context(), n, command.End(run))
		check.NoError(t, err)
		if id == "c" {
			_, err = cluster.Apply(t.Context(), n,
				&command.AdvanceClaims{Items: []command.Advance{{
					Volume: ref, Workload: run.Ref,
					To: claim.NodeDetached,
				}}})
			check.NoError(t, err)
		}
	}
	got := check.Must(countLedger(t.Context(), n))(t)
	all, releasing := got.total()
	if got.volumes != 3 || all != 3 || releasing != 2 || got.claims[claim.Taken] != 1 ||
		got.claims[claim.Unpublishing] != 1 || got.claims[claim.NodeDetached] != 1 || got.stalled.IsZero() {
		t.Errorf("%+v", got)
	}
}
