package volumes

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/peer/watcher"
	"github.com/pannier/pannier/host/internal/workload"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func TestExplainEachClaim(t *testing.T) {
	ready := &claim.Node{Name: "n2"}
	gone := &claim.Node{Name: "n2", Status: claim.NodeDisconnected}
	for name, test := range map[string]struct {
		held
		waits, next, command, lastError string
	}{
		"in use": {
			held: held{claim: claim.Claim{State: claim.Taken}, node: ready, workload: claim.Running},
			next: "uses it until it is stopped",
		},
		"workload ended": {
			held:  held{claim: claim.Claim{State: claim.Taken}, node: ready, workload: claim.Ended},
			waits: "has ended", next: "collection", command: "pannier system gc",
		},
		"workload unknown": {
			held:  held{claim: claim.Claim{State: claim.Taken}, node: ready},
			waits: "does not know its workload", command: "pannier system gc",
		},
		"node unknown": {
			held:  held{claim: claim.Claim{State: claim.Unpublishing}, workload: claim.Ended},
			waits: "does not know", command: "pannier volume detach -namespace prod -force v n2",
		},
		"node away": {
			held:  held{claim: claim.Claim{State: claim.Taken}, node: gone, workload: claim.Running},
			waits: "not heard from", next: "stopped by its own clock", command: "-force v n2",
		},
		"node away, for so": {
			held: held{claim: claim.Claim{State: claim.Unpublishing}, node: gone, letGo: time.Unix(1e9, 0)},
			next: "goes on without the node at 2001-09-09 01:46:40 UTC",
		},
		"node down": {held: held{
			claim: claim.Claim{State: claim.Unpublishing},
			node:  &claim.Node{Status: claim.NodeDown},
		}, waits: "to release what", next: "in a moment"},
		"unmounting": {
			held:  held{claim: claim.Claim{State: claim.Unpublishing}, node: ready},
			waits: `node "n2" to unmount it`, next: "goes on trying",
		},
		"unmounting fails": {held: held{
			claim: claim.Claim{State: claim.Unpublishing}, node: ready,
			attempt: watcher.Attempt{Error: "busy"},
		}, lastError: "busy", command: "pannier volume detach -namespace prod v n2"},
		"the node says why": {held: held{
			claim: claim.Claim{State: claim.Unpublishing}, node: ready,
			release: workload.Release{Error: "its process runs", Tries: 31}, attempt: watcher.Attempt{Tries: 1},
		}, lastError: "its process runs", command: "pannier volume detach -namespace prod v n2"},
		"a container holds it": {held: held{
			claim: claim.Claim{State: claim.Unpublishing}, node: ready,
			release: workload.Release{Error: "in use", Tries: 2, Command: "docker stop web"},
		}, waits: "in use", next: "stop what holds", lastError: "in use", command: "docker stop web"},
		"its process does not end": {held: held{
			claim: claim.Claim{State: claim.Taken}, node: ready, workload: claim.Running,
			release: workload.Release{Error: "it hangs", Tries: 2},
		}, waits: "stop its workload", next: "goes on", lastError: "it hangs"},
		"controller": {
			held: held{claim: claim.Claim{State: claim.NodeDetached}, node: gone}, waits: `driver "d"`,
			next: "goes on trying",
		},
		"controller fails": {held: held{
			claim:   claim.Claim{State: claim.NodeDetached},
			attempt: watcher.Attempt{Error: "no answer", Tries: 3},
		}, lastError: "no answer", command: "pannier driver status d"},
	} {
		h := test.held
		h.driver, h.claim.Node = "d", "n2"
		h.claim.Volume = claim.VolumeRef{Namespace: "prod", ID: "v"}
		got := &hostv1.ExplainedClaim{}
		h.explain(got)
		if !strings.Contains(got.GetWaitsFor(), test.waits) || !strings.Contains(got.GetNext(), test.next) ||
			!strings.Contains(got.GetCommand(), test.command) || got.GetLastError() != test.lastError ||
			got.GetNext() == "" || got.GetTries() != int32(cmp.Or(test.release.Tries, test.attempt.Tries)) {
			t.Errorf("%s: %v", name, got)
		}
	}
}
