package drivers

import (
	"testing"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/sdk/storage"
)

// The ledger and the SDK are two modules, with the same names for modes.
func TestModesHaveOneName(t *testing.T) {
	access := map[claim.AccessMode]storage.AccessMode{
		claim.SingleNodeReaderOnly:   storage.SingleNodeReaderOnly,
		claim.SingleNodeWriter:       storage.SingleNodeWriter,
		claim.SingleNodeSingleWriter: storage.SingleNodeSingleWriter,
		claim.SingleNodeMultiWriter:  storage.SingleNodeMultiWriter,
		claim.MultiNodeReaderOnly:    storage.MultiNodeReaderOnly,
		claim.MultiNodeSingleWriter:  storage.MultiNodeSingleWriter,
		claim.MultiNodeMultiWriter:   storage.MultiNodeMultiWriter,
	}
	attachment := map[claim.AttachmentMode]storage.AttachmentMode{
		claim.FileSystem: storage.FileSystem, claim.BlockDevice: storage.BlockDevice,
	}
	for _, a := range claim.AccessModes {
		for _, m := range claim.AttachmentModes {
			got := StorageCapability(claim.MountOptions{FSType: "xfs"}, claim.Capability{AccessMode: a, AttachmentMode: m})
			if got.AccessMode != access[a] || got.AttachmentMode != attachment[m] ||
				(got.FSType != "") != (m == claim.FileSystem) {
				t.Errorf("%s %s: %+v", a, m, got)
			}
		}
	}
}
