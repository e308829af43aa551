package peer

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/command"
)

// TestADeposedLeaderLeavesTheAnswerToTheNext: it finds out when a call that it answers is to call a node. The error
// makes the caller's agent ask the next leader.
func TestADeposedLeaderLeavesTheAnswerToTheNext(t *testing.T) {
	w := form(t, 1, "n1", "n2")
	_, err := w.agents["n1"].nodes.Info(within(t), "n2") // n1 has no term, like a server that does not lead any more
	if !errors.Is(err, command.ErrNotLeader) || status.Code(err) != codes.Aborted {
		t.Errorf("%s: %v", status.Code(err), err)
	}
}
