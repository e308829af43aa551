package main

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/test/lib/check"
)

func TestAVolumeIsAccessibleFromItsNode(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	node, err := r.NodeGetInfo(r.ctx, &csi.NodeGetInfoRequest{})
	check.NoError(t, err)
	segments := node.GetAccessibleTopology().GetSegments()
	if len(segments) != 1 || segments["topology.local.csi.pannier.dev/node"] != node.GetNodeId() {
		t.Fatalf("the node's topology is %v", segments)
	}
	identity, err := csi.NewIdentityClient(r.conn).GetPluginCapabilities(r.ctx, &csi.GetPluginCapabilitiesRequest{})
	if err != nil || !strings.Contains(identity.String(), "VOLUME_ACCESSIBILITY_CONSTRAINTS") {
		t.Errorf("%v, %v", identity, err)
	}
	in := func(key, node string) *csi.Topology {
		return &csi.Topology{Segments: map[string]string{key: node}}
	}
	const key = "topology.local.csi.pannier.dev/node"
	req := createRequest("a", 32*mib, mount(writer, "ext4"))
	for _, elsewhere := range []*csi.Topology{in(key, "another"), in("zone", "z1")} {
		req.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{elsewhere}}
		_, err := r.CreateVolume(r.ctx, req)
		expectCode(t, err, codes.ResourceExhausted, "do not include this node")
		room, err := r.GetCapacity(r.ctx, &csi.GetCapacityRequest{AccessibleTopology: elsewhere})
		if err != nil || room.GetAvailableCapacity() != 0 {
			t.Errorf("room elsewhere: %v, %v", room, err)
		}
	}
	req.AccessibilityRequirements.Requisite = []*csi.Topology{in(key, "another"), in(key, node.GetNodeId())}
	made, err := r.CreateVolume(r.ctx, req)
	check.NoError(t, err)
	if at := made.GetVolume().GetAccessibleTopology(); len(at) != 1 || at[0].GetSegments()[key] != node.GetNodeId() {
		t.Errorf("the volume is in %v", at)
	}
}
