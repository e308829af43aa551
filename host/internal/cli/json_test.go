package cli

import (
	"bytes"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

func TestAppendMessage(t *testing.T) {
	var b bytes.Buffer
	check.NoError(t, appendMessage(&b, (&hostv1.RaftPeer{
		Name: "<a&b>", Voter: true, LastIndex: 1 << 63, LastContact: durationpb.New(1500 * time.Millisecond),
	}).ProtoReflect()))
	b.WriteByte('\n')
	check.NoError(t, appendMessage(&b, (&hostv1.StatusResponse{
		StartedAt: timestamppb.New(time.Unix(1e9, 0)), Workloads: map[string]int64{"running": 2, "failed": 1},
		Leftovers: []string{"/a", "/b"}, Releases: []*hostv1.Release{{Tries: 3}},
	}).ProtoReflect()))
	text := b.String()
	for _, want := range []string{
		`{"name":"<a&b>",`, `"voter":true`, `"last_index":9223372036854775808`, `"last_contact":"1.500s"`,
		`"started_at":"2001-09-09T01:46:40Z"`, `"workloads":{"failed":1,"running":2}`, `"leftovers":["/a","/b"]`,
		`"releases":[{"workload":"",`, `"tries":3`, `"plugins":[]`, `"raft_index":0`,
	} {
		if !bytes.Contains(b.Bytes(), []byte(want)) {
			t.Errorf("%s is not in %s", want, text)
		}
	}
}
