package driver

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/pannier/pannier/test/lib/check"
)

// topology is one with so many bytes.
func topology(bytes int) *csi.Topology {
	return &csi.Topology{Segments: map[string]string{"zone": strings.Repeat("z", bytes)}}
}

func TestAnswersAreBounded(t *testing.T) {
	long := strings.Repeat("x", 200<<10)
	var many []*csi.Topology
	for range 100 {
		many = append(many, topology(1<<10))
	}
	for name, c := range map[string]struct {
		answer proto.Message
		says   string // empty: it is accepted
	}{
		"node id":          {&csi.NodeGetInfoResponse{NodeId: long}, "a node_id of 204800 bytes"},
		"a node's zone":    {&csi.NodeGetInfoResponse{AccessibleTopology: topology(200 << 10)}, "a segments of 204804 bytes"},
		"a volume's zone":  {volumeAt(topology(200 << 10)), "a segments of 204804 bytes"},
		"a volume's zones": {volumeAt(many...), `of the volume with the id "v"`},
		"few zones":        {volumeAt(topology(1<<10), topology(1<<10)), ""},
		"context":          {&csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"k": long}}, "a publish_context of"},
		"page token":       {&csi.ListVolumesResponse{NextToken: long}, "a next_token of"},
		"snapshot": {
			&csi.ListSnapshotsResponse{Entries: []*csi.ListSnapshotsResponse_Entry{{Snapshot: &csi.Snapshot{SnapshotId: long}}}}, "a snapshot_id of",
		},
		"nodes of a volume": {&csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: []string{"n", long}}, "a published_node_ids of"},
		"many nodes":        {&csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: strings.Split(strings.Repeat("node,", 5000), ",")}, ""},
	} {
		err := bound(c.answer.ProtoReflect(), Redactor{})
		if got := fmt.Sprint(err); (err == nil) != (c.says == "") || !strings.Contains(got, c.says) && c.says != "" {
			t.Errorf("%s: %s, not %q", name, got, c.says)
		}
	}
	said := &csi.ValidateVolumeCapabilitiesResponse{Message: "wrong password hunter2: " + long}
	check.NoError(t, bound(said.ProtoReflect(), NewRedactor(map[string]string{"password": "hunter2"})))
	if len(said.GetMessage()) > maxText+100 || strings.Contains(said.GetMessage(), "hunter2") {
		t.Errorf("the message has %d bytes: %.40s", len(said.GetMessage()), said.GetMessage())
	}
}

func TestListThatDoesNotEnd(t *testing.T) {
	for next, want := range map[string]string{"2": "", "3": "3", "": ""} {
		answer := &csi.ListSnapshotsResponse{NextToken: next}
		endList(&csi.ListSnapshotsRequest{StartingToken: "2"}, answer.ProtoReflect())
		if answer.GetNextToken() != want {
			t.Errorf("after 2 and %q comes %q, not %q", next, answer.GetNextToken(), want)
		}
	}
	endList(&csi.GetPluginInfoRequest{}, (&csi.GetPluginInfoResponse{}).ProtoReflect())
}

func volumeAt(all ...*csi.Topology) proto.Message {
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "v", AccessibleTopology: all}}
}

// TestAnswersAreText: an answer with bytes that are no text is read, at any depth.
func TestAnswersAreText(t *testing.T) {
	answer := &csi.ControllerListVolumeHealthResponse{NextToken: "2", Entries: []*csi.VolumeHealth{{
		VolumeId: "caf@", HealthStatuses: []*csi.VolumeHealth_VolumeHealthEntry{{Message: "@ is gone, über"}},
	}}}
	raw := bytes.ReplaceAll(check.Must(proto.Marshal(answer))(t), []byte("@"), []byte{0xe9}) // Latin-1
	var got csi.ControllerListVolumeHealthResponse
	check.NoError(t, newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}, &got))
	first := got.GetEntries()[0]
	if first.GetVolumeId() != "caf?" || first.GetHealthStatuses()[0].GetMessage() != "? is gone, über" || got.GetNextToken() != "2" {
		t.Errorf("got %v", &got)
	}
	if err := newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw[:len(raw)-1])}, &got); err == nil {
		t.Error("half an answer was read")
	}
}

// TestWords: a driver's words are shown without the colours that its terminal would have.
func TestWords(t *testing.T) {
	if got := Words("\x1b[1;31merror\x1b[0m: no disk", Redactor{}); got != "error: no disk" {
		t.Errorf("got %q", got)
	}
}

// FuzzAnswer: whatever a driver sends, what is read has texts within their bounds.
func FuzzAnswer(f *testing.F) {
	f.Add(check.Must(proto.Marshal(volumeAt(topology(10))))(f))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var got csi.CreateVolumeResponse
		err := newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}, &got)
		if err != nil || bound(got.ProtoReflect(), Redactor{}) != nil {
			return
		}
		if id := got.GetVolume().GetVolumeId(); !utf8.ValidString(id) || len(id) > maxID || proto.Size(&got) > len(raw) {
			t.Errorf("id %q, %d bytes of %d", id, proto.Size(&got), len(raw))
		}
	})
}
