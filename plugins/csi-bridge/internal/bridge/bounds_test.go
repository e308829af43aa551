package bridge

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/faultydriver"
)

// TestExhaustedIsToldSoon uses a driver that stays full. The call ends after a few attempts, not with the budget.
func TestExhaustedIsToldSoon(t *testing.T) {
	f := setup(t, brisk, faultydriver.Config{})
	f.faulty.Always("ControllerPublishVolume", faultydriver.Code(codes.ResourceExhausted, "3 volumes are attached"))
	_, err := f.bridge.Attach(t.Context(), f.driver, storage.AttachRequest{Volume: f.volume(), NodeID: "n"})
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "3 volumes are attached") {
		t.Errorf("got %v", err)
	}
	if n := len(f.faulty.Calls("ControllerPublishVolume")); n != 5 {
		t.Errorf("%d attempts, want 5", n)
	}
}

// TestDriverWithoutANodeID: a volume could not be detached from its node alone.
func TestDriverWithoutANodeID(t *testing.T) {
	f := setup(t, brisk, faultydriver.Config{})
	for name, tc := range map[string]struct {
		id, want string
	}{
		"empty": {"", "without the required node_id"},
		"long":  {strings.Repeat("n", 2000), "a node_id of 2000 bytes"},
	} {
		f.faulty.Always("NodeGetInfo", faultydriver.Reply(&csi.NodeGetInfoResponse{NodeId: tc.id}))
		if fp := firstFingerprint(t, f); fp.Healthy || !strings.Contains(fp.Message, tc.want) {
			t.Errorf("%s: got %+v", name, fp)
		}
	}
}

// TestLongTexts: a driver's texts are cut, and its answers must keep the bounds of the spec.
func TestLongTexts(t *testing.T) {
	f := setup(t, brisk, faultydriver.Config{})
	long := strings.Repeat("é", 50_000)
	f.faulty.Script("NodeStageVolume", faultydriver.Code(codes.Internal, "first "+long))
	err := stage(t.Context(), f)
	if s := err.Error(); len(s) > 5<<10 || !strings.Contains(s, "first é") || strings.Contains(s, "\ufffd") ||
		!strings.Contains(s, "bytes more)") {
		t.Errorf("%d bytes: %.200s", len(s), s)
	}
	f.faulty.Always("GetPluginInfo", faultydriver.Reply(&csi.GetPluginInfoResponse{Name: long}))
	if fp := firstFingerprint(t, f); len(fp.Provider) > 5<<10 || fp.Provider == "" {
		t.Errorf("a name of %d bytes", len(fp.Provider))
	}

	big := map[string]string{"k": strings.Repeat("v", 4096)}
	azure := "/subscriptions/" + strings.Repeat("x", 300)
	create := func() error {
		_, err := f.bridge.Create(t.Context(), f.driver, storage.CreateRequest{Name: "db"})
		return err
	}
	attach := func() error {
		_, err := f.bridge.Attach(t.Context(), f.driver, storage.AttachRequest{Volume: f.volume(), NodeID: "n"})
		return err
	}
	for _, tc := range []struct {
		rpc   string
		reply proto.Message
		call  func() error
		want  string
	}{
		{"CreateVolume", &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: azure}}, create, ""},
		{
			"CreateVolume", &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "v", VolumeContext: big}}, create,
			`a volume_context of 4097 bytes, at most 4096 are allowed (CSI spec, "Size Limits"): it is of the volume with the id "v"`,
		},
		{
			"CreateVolume", &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: long}}, create,
			"a volume_id of 100000 bytes",
		},
		{
			"ControllerPublishVolume", &csi.ControllerPublishVolumeResponse{PublishContext: big}, attach,
			"a publish_context of 4097 bytes",
		},
	} {
		f.faulty.Always(tc.rpc, faultydriver.Reply(tc.reply))
		err := tc.call()
		if tc.want == "" && err != nil || tc.want != "" && (status.Code(err) != codes.Internal ||
			!strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: got %v, want %q", tc.rpc, err, tc.want)
		}
	}
}
