package bridge

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/faultydriver"
)

func TestModes(t *testing.T) {
	with := map[storage.AccessMode]accessMode{
		storage.SingleNodeReaderOnly:   csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		storage.SingleNodeWriter:       csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
		storage.SingleNodeSingleWriter: csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
		storage.SingleNodeMultiWriter:  csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER,
		storage.MultiNodeReaderOnly:    csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
		storage.MultiNodeSingleWriter:  csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
		storage.MultiNodeMultiWriter:   csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
	}
	for mode, want := range with {
		for _, has := range []bool{true, false} {
			for _, attachment := range []storage.AttachmentMode{storage.FileSystem, storage.BlockDevice} {
				if !has && (mode == storage.SingleNodeSingleWriter || mode == storage.SingleNodeMultiWriter) {
					want = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
				}
				got, err := capability(storage.Capability{AccessMode: mode, AttachmentMode: attachment},
					features{singleNodeMultiWriter: has})
				if err != nil || got.GetAccessMode().GetMode() != want {
					t.Errorf("%s, SINGLE_NODE_MULTI_WRITER %v: got %v, %v; want %v", mode, has, got, err, want)
				}
				if (got.GetMount() != nil) != (attachment == storage.FileSystem) ||
					(got.GetBlock() != nil) != (attachment == storage.BlockDevice) {
					t.Errorf("%s became %v", attachment, got)
				}
			}
		}
	}
	for _, bad := range []storage.Capability{
		{},
		{AccessMode: "x", AttachmentMode: storage.FileSystem},
		{AccessMode: storage.SingleNodeWriter, AttachmentMode: "x"},
	} {
		if _, err := capability(bad, features{}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// TestRequestsCarryWhatTheDriverUnderstands makes all calls with and without the capabilities that determine
// which fields a request may have.
func TestRequestsCarryWhatTheDriverUnderstands(t *testing.T) {
	v := storage.Volume{
		ExternalID: "vol-x", Context: map[string]string{"context": "c"}, Secrets: map[string]string{"k": "secret"},
		Capability: storage.Capability{
			AccessMode: storage.SingleNodeMultiWriter, AttachmentMode: storage.FileSystem,
			FSType: "xfs", MountFlags: []string{"noatime"}, VolumeMountGroup: "99",
		},
	}
	for name, without := range map[string][]string{
		"with": nil, "without": {"SINGLE_NODE_MULTI_WRITER", "VOLUME_MOUNT_GROUP", "PUBLISH_READONLY"},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t, brisk, faultydriver.Config{Without: without})
			has := without == nil
			want := func(group string) *csi.VolumeCapability {
				c := &csi.VolumeCapability{
					AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
					AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{
						FsType:     "xfs",
						MountFlags: []string{"noatime"},
					}},
				}
				if has {
					c.AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
					c.GetMount().VolumeMountGroup = group
				}
				return c
			}
			publishContext, err := f.bridge.Attach(t.Context(), f.driver,
				storage.AttachRequest{Volume: v, NodeID: "n", ReadOnly: true})
			if err != nil || publishContext["device"] != "/dev/vol-x" {
				t.Fatalf("attach: %v, %v", publishContext, err)
			}
			check.NoError(t, f.bridge.Stage(t.Context(), f.driver,
				storage.StageRequest{Volume: v, PublishContext: publishContext, StagingPath: "/s"}))
			if err := f.bridge.Publish(t.Context(), f.driver, storage.PublishRequest{
				Volume: v, PublishContext: publishContext, StagingPath: "/s", TargetPath: f.target, ReadOnly: true,
			}); err != nil {
				t.Fatal(err)
			}
			for rpc, want := range map[string]proto.Message{
				"ControllerPublishVolume": &csi.ControllerPublishVolumeRequest{
					VolumeId: "vol-x", NodeId: "n", VolumeCapability: want(
						""), Readonly: has, Secrets: v.Secrets, VolumeContext: v.Context,
				},
				"NodeStageVolume": &csi.NodeStageVolumeRequest{
					VolumeId: "vol-x", PublishContext: publishContext, StagingTargetPath: "/s", VolumeCapability: want(
						"99"), Secrets: v.Secrets, VolumeContext: v.Context,
				},
				"NodePublishVolume": &csi.NodePublishVolumeRequest{
					VolumeId: "vol-x", PublishContext: publishContext, StagingTargetPath: "/s", TargetPath: f.target,
					VolumeCapability: want("99"),
					Readonly:         true, Secrets: v.Secrets, VolumeContext: v.Context,
				},
			} {
				if got := f.faulty.Calls(rpc)[0].Request; !proto.Equal(got, want) {
					t.Errorf("%s:\ngot  %v\nwant %v", rpc, got, want)
				}
			}
		})
	}
}

// TestCapabilitiesAreForgottenWithTheirDriver replaces a driver by one with fewer capabilities.
func TestCapabilitiesAreForgottenWithTheirDriver(t *testing.T) {
	f := setup(t, brisk, faultydriver.Config{})
	for range 5 {
		check.NoError(t, stage(t.Context(), f))
	}
	if n := len(f.faulty.Calls("NodeGetCapabilities")); n > 2 {
		t.Errorf("asked %d times for capabilities on one connection", n)
	}
	f.faulty.Stop()
	f.faulty.Reconfigure(func(c *faultydriver.Config) { c.Without = []string{"STAGE_UNSTAGE_VOLUME"} })
	f.faulty.Restart()
	for range 2 { // the first call may be the one that notices that the old process has ended
		if err := stage(t.Context(), f); status.Code(err) == codes.Unimplemented {
			return
		}
	}
	t.Error("the capabilities of the old driver are still used")
}

// TestLackingCapabilities removes the capability that each call needs.
func TestLackingCapabilities(t *testing.T) {
	needs := map[string]string{
		"ControllerPublishVolume": "PUBLISH_UNPUBLISH_VOLUME", "ControllerUnpublishVolume": "PUBLISH_UNPUBLISH_VOLUME",
		"NodeStageVolume": "STAGE_UNSTAGE_VOLUME", "NodeUnstageVolume": "STAGE_UNSTAGE_VOLUME",
		"CreateVolume": "CREATE_DELETE_VOLUME", "DeleteVolume": "CREATE_DELETE_VOLUME", "ListVolumes": "LIST_VOLUMES",
		"GetCapacity":            "GET_CAPACITY",
		"ControllerModifyVolume": "MODIFY_VOLUME",
		"ControllerExpandVolume": "EXPAND_VOLUME", "NodeExpandVolume": "EXPAND_VOLUME",
		"CreateSnapshot": "CREATE_DELETE_SNAPSHOT", "DeleteSnapshot": "CREATE_DELETE_SNAPSHOT",
		"ListSnapshots":             "LIST_SNAPSHOTS",
		"NodeGetVolumeStats":        "GET_VOLUME_STATS",
		"CreateVolumeGroupSnapshot": "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT",
		"GetVolumeGroupSnapshot":    "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT",
		"DeleteVolumeGroupSnapshot": "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT",
	}
	for _, op := range operations {
		check := func(config faultydriver.Config, text string) {
			f := setup(t, brisk, config)
			err := op.call(t.Context(), f)
			if status.Code(err) != codes.Unimplemented ||
				!strings.Contains(err.Error(), `on driver "faulty": the driver `+text) {
				t.Errorf("%s: got %v, want %q", op.rpc, err, text)
			}
			if n := len(f.faulty.Calls(op.rpc)); n != 0 {
				t.Errorf("%s was called nevertheless", op.rpc)
			}
		}
		if needs[op.rpc] != "" {
			check(faultydriver.Config{Without: []string{needs[op.rpc]}}, "does not implement "+needs[op.rpc])
		}
		switch {
		case op.rpc == "ValidateVolumeCapabilities" || op.rpc == "NodeUnpublishVolume":
		case strings.HasPrefix(op.rpc, "Node"):
			check(faultydriver.Config{NoNode: true}, "has no node service")
		default:
			check(faultydriver.Config{NoController: true}, "has no controller service")
		}
	}
}

const (
	writer = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	reader = csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY
	many   = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
)

func mount(mode accessMode, fs string, flags ...string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fs, MountFlags: flags}},
	}
}

func block(mode accessMode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
	}
}

func TestCompare(t *testing.T) {
	modeOnly := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: writer}}
	for name, tc := range map[string]struct {
		want, got *csi.VolumeCapability
		diff      []string
	}{
		"same":                  {mount(writer, "ext4", "a", "b"), mount(writer, "ext4", "a", "b"), nil},
		"flags in other order":  {mount(writer, "ext4", "a", "b"), mount(writer, "ext4", "b", "a"), nil},
		"filesystem left open":  {mount(writer, ""), mount(writer, "xfs"), nil},
		"same block":            {block(writer), block(writer), nil},
		"old driver, mode only": {mount(writer, "ext4", "a"), modeOnly, nil},
		"old driver, block":     {block(writer), modeOnly, nil},
		"nothing": {
			block(writer), &csi.VolumeCapability{},
			[]string{"requested access mode SINGLE_NODE_WRITER, got UNKNOWN"},
		},
		"nil": {block(writer), nil, []string{"requested access mode SINGLE_NODE_WRITER, got UNKNOWN"}},
		"mode": {
			block(writer), block(reader),
			[]string{"requested access mode SINGLE_NODE_WRITER, got SINGLE_NODE_READER_ONLY"},
		},
		"mount for block": {
			block(writer), mount(writer, ""),
			[]string{"'file-system' access type was not requested but was validated by the controller"},
		},
		"block for mount": {
			mount(writer, ""), block(writer),
			[]string{"'block-device' access type was not requested but was validated by the controller"},
		},
		"filesystem": {
			mount(writer, "ext4"), mount(writer, "xfs"),
			[]string{"requested filesystem type ext4, got xfs"},
		},
		"filesystem not set": {mount(writer, "ext4"), mount(writer, ""), []string{"requested filesystem type ext4, got "}},
		"flags": {
			mount(writer, "", "a"), mount(writer, "", "b"),
			[]string{"requested mount flags did not match available capabilities"},
		},
		"flags missing": {
			mount(writer, "", "a"), mount(writer, ""),
			[]string{"requested mount flags did not match available capabilities"},
		},
		"flags added": {
			mount(writer, ""), mount(writer, "", "a"),
			[]string{"requested mount flags did not match available capabilities"},
		},
		"all": {mount(writer, "ext4", "a"), mount(many, "xfs"), []string{
			"requested access mode SINGLE_NODE_WRITER, got MULTI_NODE_MULTI_WRITER",
			"requested filesystem type ext4, got xfs",
			"requested mount flags did not match available capabilities",
		}},
	} {
		if diff := compare(tc.want, tc.got); !reflect.DeepEqual(diff, tc.diff) {
			t.Errorf("%s: got %q, want %q", name, diff, tc.diff)
		}
	}
}

func TestValidateVolume(t *testing.T) {
	asked := []storage.Capability{
		{
			AccessMode: storage.SingleNodeWriter, AttachmentMode: storage.FileSystem, FSType: "ext4",
			MountFlags: []string{"noatime"},
		},
		{AccessMode: storage.SingleNodeReaderOnly, AttachmentMode: storage.BlockDevice},
	}
	const (
		mode1 = "requested access mode SINGLE_NODE_WRITER, got MULTI_NODE_MULTI_WRITER"
		mode2 = "requested access mode SINGLE_NODE_READER_ONLY, got MULTI_NODE_MULTI_WRITER"
		fs    = "requested filesystem type ext4, got xfs"
		flags = "requested mount flags did not match available capabilities"
		typ   = "'file-system' access type was not requested but was validated by the controller"
	)
	confirmed := func(cs ...*csi.VolumeCapability) *csi.ValidateVolumeCapabilitiesResponse {
		return &csi.ValidateVolumeCapabilitiesResponse{
			Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeCapabilities: cs},
		}
	}
	for name, tc := range map[string]struct {
		config   faultydriver.Config
		fault    faultydriver.Fault
		warnings []string
		code     codes.Code
		errors   []string
	}{
		"confirmed": {fault: faultydriver.OK()},
		"one of two": {
			fault:    faultydriver.Reply(confirmed(mount(writer, "ext4", "noatime"))),
			warnings: []string{typ, "requested access mode SINGLE_NODE_READER_ONLY, got SINGLE_NODE_WRITER"},
		},
		"none": {
			fault: faultydriver.Reply(confirmed(mount(many, "xfs"))), code: codes.FailedPrecondition,
			errors: []string{mode1, mode2, fs, flags, typ},
		},
		"not confirmed": {
			fault:    faultydriver.Reply(&csi.ValidateVolumeCapabilitiesResponse{}),
			warnings: []string{"the driver did not confirm the capabilities"},
		},
		"with a message": {
			fault: faultydriver.Reply(
				&csi.ValidateVolumeCapabilitiesResponse{Message: "cannot use noatime"}),
			warnings: []string{"the driver did not confirm the capabilities: cannot use [REDACTED]"},
		},
		"confirmed nothing": {
			fault:    faultydriver.Reply(confirmed()),
			warnings: []string{"the driver did not confirm the capabilities"},
		},
		"not implemented": {
			fault:    faultydriver.Code(codes.Unimplemented, ""),
			warnings: []string{"the driver does not implement ValidateVolumeCapabilities: the volume could not be validated"},
		},
		"no controller": {
			config: faultydriver.Config{NoController: true}, fault: faultydriver.OK(),
			warnings: []string{"the driver has no controller service: the volume could not be validated"},
		},
		"no such volume": {
			fault: faultydriver.Code(codes.NotFound, "no volume"), code: codes.NotFound,
			errors: []string{"no volume"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t, brisk, tc.config)
			f.faulty.Always("ValidateVolumeCapabilities", tc.fault)
			warnings, err := f.bridge.ValidateVolume(t.Context(), f.driver, storage.ValidateRequest{
				Volume: storage.Volume{
					Name:       "x",
					ExternalID: "vol-x",
				}, Capabilities: asked, Parameters: map[string]string{"p": "1"},
			})
			if status.Code(err) != tc.code {
				t.Fatalf("got %v, want %s", err, tc.code)
			}
			for _, text := range tc.errors {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%q is not in %v", text, err)
				}
			}
			if !slices.Equal(warnings, tc.warnings) {
				t.Errorf("got warnings %q, want %q", warnings, tc.warnings)
			}
			if n := len(f.faulty.Calls("ValidateVolumeCapabilities")); n > 1 {
				t.Errorf("%d calls, want one", n)
			}
		})
	}
}
