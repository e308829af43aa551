package volumes

import (
	"errors"
	"testing"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clustertest"
)

// A further controller is asked only under a mark that is taken then: by a server that leads no more, what has the
// volume's name may be another volume.
func TestAnActTakesItsMarkBeforeEachCall(t *testing.T) {
	ledger := clustertest.Start(t)
	v := claim.Volume{Definition: claim.Definition{
		VolumeRef: claim.VolumeRef{Namespace: "default", ID: "v"}, Name: "v", PluginID: "p", ExternalID: "ext-v",
		Capabilities: []claim.Capability{{AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem}},
	}}
	v = check.Must(cluster.Apply(t.Context(), ledger, &command.RegisterVolume{Volume: v}))(t).Volume
	h := &Handler{Ledger: ledger}
	a := h.newAct(t.Context(), v, claim.Mark{Act: claim.Deleting})
	check.NoError(t, a.begin(t.Context()))
	first := a.mark
	check.NoError(t, a.begin(t.Context()))
	if !a.mark.Repeated || a.mark.Index <= first.Index {
		t.Errorf("%+v after %+v", a.mark, first)
	}
	check.Must(cluster.Apply(t.Context(), ledger, &command.DeregisterVolume{Ref: v.VolumeRef, Deleted: v.CreateIndex}))(t)
	if err := a.begin(t.Context()); !errors.Is(err, claim.ErrVolumeNotFound) {
		t.Errorf("of a volume that is gone: %v", err)
	}
	check.Must(cluster.Apply(t.Context(), ledger, &command.RegisterVolume{Volume: v}))(t)
	if err := a.begin(t.Context()); !errors.Is(err, claim.ErrConflict) {
		t.Errorf("of another volume: %v", err)
	}
}
