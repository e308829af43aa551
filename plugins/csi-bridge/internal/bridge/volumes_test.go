package bridge

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/pannier/pannier/plugins/csi-bridge/internal/driver"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/faultydriver"
)

func TestCreateAndList(t *testing.T) {
	f := setup(t, brisk, faultydriver.Config{})
	rack := storage.Topology{"rack": "R1"}
	req := storage.CreateRequest{
		Name: "db", CapacityMin: 1 << 20, CapacityMax: 1 << 30, Capabilities: []storage.Capability{fileSystem},
		Parameters: map[string]string{"sku": "fast"}, Secrets: secretsOnly, SnapshotID: "snap-x",
		Topology: storage.TopologyRequirement{Requisite: []storage.Topology{rack}, Preferred: []storage.Topology{rack}},
	}
	made, err := f.bridge.Create(t.Context(), f.driver, req)
	if err != nil {
		t.Fatal(err)
	}
	again, err := f.bridge.Create(t.Context(), f.driver, req)
	if err != nil || !reflect.DeepEqual(made, again) {
		t.Errorf("a repeated create gave %+v, %v; want %+v", again, err, made)
	}
	want := storage.CreateResponse{
		ExternalID: made.ExternalID, Capacity: 1 << 20,
		Context: map[string]string{"made-by": "faulty"}, AccessibleTopology: []storage.Topology{rack},
	}
	if !reflect.DeepEqual(made, want) {
		t.Errorf("got %+v, want %+v", made, want)
	}
	sent := f.faulty.Calls("CreateVolume")[0].Request.(*csi.CreateVolumeRequest)
	if sent.GetCapacityRange().GetLimitBytes() != 1<<30 || sent.GetParameters()["sku"] != "fast" ||
		sent.GetSecrets()["pin"] != "77" ||
		sent.GetVolumeContentSource().GetSnapshot().GetSnapshotId() != "snap-x" ||
		sent.GetAccessibilityRequirements().GetRequisite()[0].GetSegments()["rack"] != "R1" {
		t.Errorf("the driver was asked %v", sent)
	}
	clone, err := f.bridge.Create(t.Context(), f.driver,
		storage.CreateRequest{Name: "copy", CloneID: made.ExternalID, Capabilities: req.Capabilities})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.bridge.Attach(t.Context(), f.driver,
		storage.AttachRequest{Volume: f.volume(), NodeID: "n1"}); err != nil {
		t.Fatal(err)
	}

	first, err := f.bridge.List(t.Context(), f.driver, storage.Page{Max: 2})
	if err != nil || len(first.Volumes) != 2 || first.Next == "" {
		t.Fatalf("first page: %+v, %v", first, err)
	}
	if v := first.Volumes[0]; v.ExternalID != "vol-x" || !reflect.DeepEqual(v.PublishedNodeIDs, []string{"n1"}) {
		t.Errorf("got %+v", v)
	}
	second, err := f.bridge.List(t.Context(), f.driver, storage.Page{Max: 2, Token: first.Next})
	if err != nil || len(second.Volumes) != 1 || second.Next != "" {
		t.Fatalf("second page: %+v, %v", second, err)
	}
	if v := second.Volumes[0]; v.ExternalID != clone.ExternalID || v.CloneID != made.ExternalID ||
		first.Volumes[1].SnapshotID != "snap-x" {
		t.Errorf("got %+v after %+v", v, first)
	}
	if _, err := f.bridge.List(t.Context(), f.driver,
		storage.Page{Token: "no such page"}); status.Code(err) != codes.Aborted {
		t.Errorf("with a bad token: %v", err)
	}
}

// A volume whose answer does not name the requested source is there, with a warning: many drivers name none.
func TestCreateFromAnUnconfirmedSource(t *testing.T) {
	f := setup(t, brisk, faultydriver.Config{})
	for _, req := range []storage.CreateRequest{{Name: "a", SnapshotID: "snap-x"}, {Name: "b", CloneID: "vol-x"}} {
		req.Capabilities = []storage.Capability{fileSystem}
		f.faulty.Script("CreateVolume", faultydriver.Reply(&csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: req.Name}}))
		made, err := f.bridge.Create(t.Context(), f.driver, req)
		if err != nil || made.ExternalID != req.Name || len(made.Warnings) != 1 ||
			!strings.Contains(made.Warnings[0], req.SnapshotID+req.CloneID) {
			t.Errorf("got %+v, %v", made, err)
		}
	}
	if n := len(f.faulty.Calls("DeleteVolume")); n > 0 {
		t.Errorf("%d volumes were deleted", n)
	}
}

func TestCreateNeeds(t *testing.T) {
	for want, tc := range map[string]struct {
		without string
		req     storage.CreateRequest
	}{
		"FailedPrecondition: CREATE_DELETE_SNAPSHOT": {
			"CREATE_DELETE_SNAPSHOT",
			storage.CreateRequest{SnapshotID: "s"},
		},
		"FailedPrecondition: CLONE_VOLUME": {"CLONE_VOLUME", storage.CreateRequest{CloneID: "v"}},
		"FailedPrecondition: VOLUME_ACCESSIBILITY_CONSTRAINTS": {
			"VOLUME_ACCESSIBILITY_CONSTRAINTS",
			storage.CreateRequest{Topology: storage.TopologyRequirement{Requisite: []storage.Topology{{"a": "b"}}}},
		},
		"InvalidArgument: at most one of": {"", storage.CreateRequest{SnapshotID: "s", CloneID: "v"}},
		"InvalidArgument: unknown access mode": {
			"",
			storage.CreateRequest{Capabilities: []storage.Capability{{}}},
		},
	} {
		f := setup(t, brisk, faultydriver.Config{Without: []string{tc.without}})
		_, err := f.bridge.Create(t.Context(), f.driver, tc.req)
		code, text, _ := strings.Cut(want, ": ")
		if status.Code(err).String() != code || !strings.Contains(err.Error(), text) ||
			len(f.faulty.Calls("CreateVolume")) != 0 {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestAnswersWithoutAnID uses a driver that breaks the spec.
func TestAnswersWithoutAnID(t *testing.T) {
	f := setup(t, brisk, faultydriver.Config{})
	f.faulty.Always("CreateVolume", faultydriver.Reply(&csi.CreateVolumeResponse{}))
	f.faulty.Always("CreateSnapshot", faultydriver.Reply(&csi.CreateSnapshotResponse{}))
	_, err := f.bridge.Create(t.Context(), f.driver, storage.CreateRequest{Name: "db"})
	_, err2 := f.bridge.CreateSnapshot(t.Context(), f.driver, storage.CreateSnapshotRequest{Name: "s", Volume: f.volume()})
	for _, err := range []error{err, err2} {
		if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "without an id") {
			t.Errorf("got %v", err)
		}
	}
}

func TestExpand(t *testing.T) {
	f := setup(t, brisk, faultydriver.Config{})
	got, err := f.bridge.Expand(t.Context(), f.driver,
		storage.ExpandRequest{Volume: f.volume(), CapacityMin: 5, CapacityMax: 9})
	if err != nil || got != (storage.ExpandResponse{Capacity: 5, NodeExpansionRequired: true}) {
		t.Errorf("got %+v, %v", got, err)
	}
	v := f.volume()
	v.Capability = storage.Capability{} // no workload has claimed it
	if _, err := f.bridge.Expand(t.Context(), f.driver, storage.ExpandRequest{Volume: v, CapacityMin: 5}); err != nil {
		t.Error(err)
	}
	size, err := f.bridge.ExpandNode(t.Context(), f.driver,
		storage.ExpandNodeRequest{Volume: f.volume(), CapacityMin: 5, VolumePath: "/p", StagingPath: "/s"})
	if err != nil || size != 5 {
		t.Errorf("got %d, %v", size, err)
	}
	sent := f.faulty.Calls("NodeExpandVolume")[0].Request.(*csi.NodeExpandVolumeRequest)
	if sent.GetVolumePath() != "/p" || sent.GetStagingTargetPath() != "/s" || sent.GetSecrets()["pin"] != "77" ||
		sent.GetVolumeCapability() == nil {
		t.Errorf("the driver was asked %v", sent)
	}
}

func TestSnapshots(t *testing.T) {
	f := setup(t, brisk, faultydriver.Config{})
	req := storage.CreateSnapshotRequest{Name: "nightly", Volume: f.volume(), Parameters: map[string]string{"p": "1"}}
	s, err := f.bridge.CreateSnapshot(t.Context(), f.driver, req)
	if err != nil || s.VolumeExternalID != "vol-x" || !s.Ready || s.Size != 1<<20 ||
		time.Since(s.CreatedAt) > time.Minute {
		t.Fatalf("got %+v, %v", s, err)
	}
	list, err := f.bridge.ListSnapshots(t.Context(), f.driver,
		storage.ListSnapshotsRequest{VolumeExternalID: "vol-x", Page: storage.Page{Max: 1}})
	if err != nil || len(list.Snapshots) != 1 || list.Next == "" {
		t.Errorf("got %+v, %v", list, err)
	}
	list, err = f.bridge.ListSnapshots(t.Context(), f.driver, storage.ListSnapshotsRequest{SnapshotID: s.ID})
	if err != nil || len(list.Snapshots) != 1 || !reflect.DeepEqual(list.Snapshots[0], s) {
		t.Errorf("got %+v, %v; want %+v", list, err, s)
	}
	if err := f.bridge.DeleteSnapshot(t.Context(), f.driver, s.ID, nil); err != nil {
		t.Error(err)
	}
	if list, _ := f.bridge.ListSnapshots(t.Context(), f.driver,
		storage.ListSnapshotsRequest{SnapshotID: s.ID}); len(list.Snapshots) != 0 {
		t.Errorf("after delete: %+v", list)
	}
}

func TestVolumeStats(t *testing.T) {
	usage := []storage.Usage{
		{Unit: storage.Bytes, Total: 100, Used: 40, Available: 60},
		{Unit: storage.Inodes, Total: 10, Used: 4, Available: 6},
	}
	old := &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: 1}, {Total: 7}}}
	old.ProtoReflect().SetUnknown(oldField(true, "the disk fails, says hunter2"))
	sick := &csi.NodeGetVolumeHealthResponse{VolumeHealth: &csi.VolumeHealth{HealthStatuses: []*csi.VolumeHealth_VolumeHealthEntry{
		{Status: csi.VolumeHealthErrorType_DEGRADED, Message: "one mirror is away"},
		{Status: csi.VolumeHealthErrorType_DATA_LOSS, Reason: "Scrub"},
	}}}
	without := faultydriver.Config{Without: []string{"GET_VOLUME_HEALTH"}}
	for name, tc := range map[string]struct {
		config  faultydriver.Config
		replies map[string]proto.Message
		want    storage.Stats
	}{
		"well": {want: storage.Stats{Usage: usage, Condition: &storage.Condition{}}},
		"sick": {
			replies: map[string]proto.Message{"NodeGetVolumeHealth": sick},
			want: storage.Stats{
				Usage:     usage,
				Condition: &storage.Condition{Abnormal: true, Message: "DEGRADED: one mirror is away; DATA_LOSS: Scrub"},
			},
		},
		"no condition": {config: without, want: storage.Stats{Usage: usage}},
		"before 1.13": {config: without, replies: map[string]proto.Message{"NodeGetVolumeStats": old}, want: storage.Stats{
			Usage: []storage.Usage{{Unit: storage.Bytes, Total: 1}}, Condition: &storage.Condition{
				Abnormal: true,
				Message:  "the disk fails, says [REDACTED]",
			},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t, brisk, tc.config)
			for rpc, reply := range tc.replies {
				f.faulty.Always(rpc, faultydriver.Reply(reply))
			}
			v := storage.Volume{ExternalID: "vol-x", Secrets: map[string]string{"p": "hunter2"}}
			got, err := f.bridge.VolumeStats(t.Context(), f.driver,
				storage.StatsRequest{Volume: v, VolumePath: "/p", StagingPath: "/s"})
			if err != nil || !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %+v %+v, %v", got, got.Condition, err)
			}
		})
	}
}

// oldField is a VolumeCondition in field 2, as in CSI 1.12.
func oldField(abnormal bool, message string) []byte {
	body := protowire.AppendTag(nil, 1, protowire.VarintType)
	body = protowire.AppendVarint(body, protowire.EncodeBool(abnormal))
	body = protowire.AppendTag(body, 2, protowire.BytesType)
	body = protowire.AppendString(body, message)
	field := protowire.AppendTag(nil, 2, protowire.BytesType)
	return protowire.AppendBytes(field, body)
}

func TestOldConditionOfAMalformedField(t *testing.T) {
	whole := oldField(true, "text")
	for n := range whole {
		m := &csi.NodeGetVolumeStatsResponse{}
		m.ProtoReflect().SetUnknown(whole[:n])
		if c := oldCondition(m, driver.Redactor{}); c != nil {
			t.Errorf("%d of %d bytes gave %+v", n, len(whole), c)
		}
	}
	if oldCondition((*csi.ListVolumesResponse_VolumeStatus)(nil), driver.Redactor{}) != nil {
		t.Error("a volume without a status has a condition")
	}
}

// TestCapacity asks for the room from somewhere, and the driver that has no topology for the room anywhere.
func TestCapacity(t *testing.T) {
	for name, without := range map[string][]string{"topology": nil, "no topology": {"VOLUME_ACCESSIBILITY_CONSTRAINTS"}} {
		f := setup(t, brisk, faultydriver.Config{Without: without})
		f.faulty.SetRoom(1 << 30)
		room, err := f.bridge.Capacity(t.Context(), f.driver, storage.CapacityRequest{
			Capabilities: []storage.Capability{fileSystem}, Parameters: map[string]string{"sku": "fast"},
			Topology: storage.Topology{"rack": "r1"},
		})
		if err != nil || room != (storage.Capacity{Available: 1 << 30, MaximumVolume: 1 << 30, MinimumVolume: 1 << 20}) {
			t.Errorf("%s: got %+v, %v", name, room, err)
		}
		sent := f.faulty.Calls("GetCapacity")[0].Request.(*csi.GetCapacityRequest)
		if sent.GetParameters()["sku"] != "fast" || sent.GetVolumeCapabilities()[0].GetMount().GetFsType() != "ext4" ||
			(sent.GetAccessibleTopology().GetSegments()["rack"] == "r1") != (without == nil) {
			t.Errorf("%s: sent %v", name, sent)
		}
	}
}

// TestFullDriverIsAskedOnce creates a volume at a driver that is known to be full: no call is repeated in the hope
// that it gets room, and the volume that an earlier call has made is found.
func TestFullDriverIsAskedOnce(t *testing.T) {
	f := setup(t, brisk, faultydriver.Config{})
	f.faulty.SetRoom(100)
	create := func(name string) (storage.CreateResponse, error) {
		return f.bridge.Create(t.Context(), f.driver, storage.CreateRequest{
			Name: name, CapacityMin: 100, Capabilities: []storage.Capability{fileSystem}, Full: true,
		})
	}
	first, err := create("a")
	if err != nil {
		t.Fatal(err)
	}
	again, err := create("a")
	if err != nil || again.ExternalID != first.ExternalID {
		t.Errorf("got %+v, %v; want %q", again, err, first.ExternalID)
	}
	if _, err = create("b"); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v", err)
	}
	if n := len(f.faulty.Calls("CreateVolume")); n != 3 {
		t.Errorf("%d calls for three creates", n)
	}
}

// TestGet reads a volume from drivers of several versions of the spec.
func TestGet(t *testing.T) {
	for name, tc := range map[string]struct {
		without []string
		code    codes.Code
		health  bool // a condition is reported
		nodes   bool // and the nodes that it is attached to
	}{
		"volume and health": {health: true, nodes: true},
		"no health":         {without: []string{"GET_VOLUME_HEALTH"}, nodes: true},
		"health only":       {without: []string{"GET_VOLUME"}, health: true},
		"neither":           {without: []string{"GET_VOLUME", "GET_VOLUME_HEALTH"}, code: codes.Unimplemented},
	} {
		f := setup(t, brisk, faultydriver.Config{Without: tc.without})
		_, err := f.bridge.Attach(t.Context(), f.driver, storage.AttachRequest{Volume: f.volume(), NodeID: "n"})
		if err != nil {
			t.Fatal(err)
		}
		got, err := f.bridge.Get(t.Context(), f.driver, f.volume())
		if status.Code(err) != tc.code || (got.Condition != nil) != tc.health ||
			(len(got.PublishedNodeIDs) == 1) != tc.nodes || err == nil && got.ExternalID != "vol-x" {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}
