package site

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// A problem is shown once, at its cause, with what follows from it; a problem of its own stays one.
func TestProblemsOnce(t *testing.T) {
	long := timestamppb.New(time.Now().Add(-time.Hour))
	sick := []*hostv1.NodeDriver{{Id: "shared"}}
	lost := &facts{
		nodes: &hostv1.ListNodesResponse{Nodes: []*hostv1.Node{
			{Name: "n1", Status: readyNode}, {Name: "n2", Status: "disconnected", Drivers: sick}, {Name: "n3", Status: readyNode},
		}},
		health: &hostv1.AutopilotHealthResponse{Peers: []*hostv1.RaftPeer{{Name: "n1", Healthy: true}, {Name: "n2"}}},
		examined: &hostv1.ExamineResponse{Node: "n1", Findings: []*hostv1.Finding{
			{Check: "peers", Status: "fail", Why: "n2 is failed: no gossip arrives from it"},
			{Check: "peers", Status: "fail", Why: "n2 cannot be reached for calls: refused"},
			{Check: "quorum", Status: "fail", Why: "2 voting servers, of which 0 may fail; not healthy: n2"},
			{Check: "disk", Status: "ok"},
		}},
		waiting: []waiting{{Volume: "db", Workload: "postgres", Node: "n2", State: "unpublishing", Since: long}},
	}
	all := problems(lost.findings())
	if len(all) != 1 || !strings.HasPrefix(all[0].Text, "n2 sends no heartbeats") || len(all[0].With) != 4 {
		t.Errorf("a lost node: %+v", all)
	}
	// The node has done its part, and the driver's controller does not.
	lost.waiting[0].State = "node-detached"
	if all := problems(lost.findings()); len(all) != 2 {
		t.Errorf("a lost node, and a volume that is not detached: %+v", all)
	}
	plugin := &facts{
		examined: &hostv1.ExamineResponse{Node: "n1", Findings: []*hostv1.Finding{
			{Check: "plugins", Subject: "csi-bridge", Status: "fail", Why: "csi-bridge is backing off"},
			{Check: "drivers", Subject: "local", Status: "fail", Why: "local is not healthy"},
			{Check: "drivers", Subject: "gone", Status: "fail", Why: "gone is not healthy"},
		}},
		waiting: []waiting{{Volume: "db", Driver: "local", Workload: "postgres", Node: "n1", State: "unpublishing", Since: long}},
	}
	if all := problems(plugin.findings()); len(all) != 1 || len(all[0].With) != 3 {
		t.Errorf("a plugin that does not run: %+v", all)
	}

	down := errors.New("no leader")
	outage := &facts{unexamined: true, errs: map[string]error{"nodes": down, "releases": down, "tokens": down}}
	if all := problems(outage.findings()); len(all) != 1 || len(all[0].With) != 2 {
		t.Errorf("no leader: %+v", all)
	}
}
