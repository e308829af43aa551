package apiserver

import (
	"errors"
	"strings"
	"testing"

	"connectrpc.com/connect"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

func TestExplainVolume(t *testing.T) {
	needsRoot(t)
	h := openHost(t)
	h.create(t, spec("v"))
	explain := func() *hostv1.ExplainVolumeResponse {
		t.Helper()
		resp := check.Must(h.client.Volumes.ExplainVolume(h.ctx, &hostv1.ExplainVolumeRequest{Id: "v"}))(t)
		return resp
	}
	if got := explain(); got.GetSummary() != "nobody holds it" || len(got.GetClaims()) != 0 {
		t.Errorf("got %v", got)
	}
	h.start(t, "w", "v")
	if got := explain(); got.GetSummary() != "in use by 1 workload as single-node-writer" ||
		got.GetClaims()[0].GetNodeStatus() != "ready" || got.GetClaims()[0].GetWaitsFor() != "" {
		t.Errorf("got %v", got)
	}
	h.fake.setFailure("unpublish", errors.New("the mount is busy"))
	stream := check.Must(h.client.Workloads.StopWorkload(h.ctx, &hostv1.StopWorkloadRequest{Id: "w"}))(t)
	defer stream.Close()
	check.Eventually(t, "it says why the volume is not released", func() bool {
		got := explain()
		return len(got.GetClaims()) == 1 && strings.Contains(got.GetClaims()[0].GetLastError(), "the mount is busy") &&
			strings.HasPrefix(got.GetClaims()[0].GetCommand(), "pannier volume detach v n1")
	})
	h.fake.setFailure("unpublish", nil)
	check.Eventually(t, "the volume is free", func() bool { return len(explain().GetClaims()) == 0 })
	_, err := h.client.Volumes.ExplainVolume(h.ctx, &hostv1.ExplainVolumeRequest{Id: "nothing"})
	wantError(t, err, connect.CodeNotFound, "nothing")
}
