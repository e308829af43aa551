package bridge

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/faultydriver"
)

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
		"nothing":               {block(writer), &csi.VolumeCapability{}, []string{"requested access mode SINGLE_NODE_WRITER, got UNKNOWN"}},
		"nil":                   {block(writer), nil, []string{"requested access mode SINGLE_NODE_WRITER, got UNKNOWN"}},
		"mode":                  {block(writer), block(reader), []string{"requested access mode SINGLE_NODE_WRITER, got SINGLE_NODE_READER_ONLY"}},
		"mount for block":       {block(writer), mount(writer, ""), []string{"'file-system' access type was not requested but was validated by the controller"}},
		"block for mount":       {mount(writer, ""), block(writer), []string{"'block-device' access type was not requested but was validated by the controller"}},
		"filesystem":            {mount(writer, "ext4"), mount(writer, "xfs"), []string{"requested filesystem type ext4, got xfs"}},
		"filesystem not set":    {mount(writer, "ext4"), mount(writer, ""), []string{"requested filesystem type ext4, got "}},
		"flags":                 {mount(writer, "", "a"), mount(writer, "", "b"), []string{"requested mount flags did not match available capabilities"}},
		"flags missing":         {mount(writer, "", "a"), mount(writer, ""), []string{"requested mount flags did not match available capabilities"}},
		"flags added":           {mount(writer, ""), mount(writer, "", "a"), []string{"requested mount flags did not match available capabilities"}},
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
		{AccessMode: storage.SingleNodeWriter, AttachmentMode: storage.FileSystem, FSType: "ext4", MountFlags: []string{"noatime"}},
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
		"confirmed":         {fault: faultydriver.OK()},
		"one of two":        {fault: faultydriver.Reply(confirmed(mount(writer, "ext4", "noatime"))), warnings: []string{typ, "requested access mode SINGLE_NODE_READER_ONLY, got SINGLE_NODE_WRITER"}},
		"none":              {fault: faultydriver.Reply(confirmed(mount(many, "xfs"))), code: codes.FailedPrecondition, errors: []string{mode1, mode2, fs, flags, typ}},
		"not confirmed":     {fault: faultydriver.Reply(&csi.ValidateVolumeCapabilitiesResponse{}), warnings: []string{"the driver did not confirm the capabilities"}},
		"with a message":    {fault: faultydriver.Reply(&csi.ValidateVolumeCapabilitiesResponse{Message: "cannot use noatime"}), warnings: []string{"the driver did not confirm the capabilities: cannot use [REDACTED]"}},
		"confirmed nothing": {fault: faultydriver.Reply(confirmed()), warnings: []string{"the driver did not confirm the capabilities"}},
		"not implemented":   {fault: faultydriver.Code(codes.Unimplemented, ""), warnings: []string{"the driver does not implement ValidateVolumeCapabilities: the volume could not be validated"}},
		"no controller":     {config: faultydriver.Config{NoController: true}, fault: faultydriver.OK(), warnings: []string{"the driver has no controller service: the volume could not be validated"}},
		"no such volume":    {fault: faultydriver.Code(codes.NotFound, "no volume"), code: codes.NotFound, errors: []string{"no volume"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t, brisk, tc.config)
			f.faulty.Always("ValidateVolumeCapabilities", tc.fault)
			warnings, err := f.bridge.ValidateVolume(t.Context(), f.driver, storage.ValidateRequest{
				Volume: storage.Volume{Name: "x", ExternalID: "vol-x"}, Capabilities: asked, Parameters: map[string]string{"p": "1"},
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
