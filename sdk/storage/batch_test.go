package storage

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/internal/inprocess"
	storagev1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/storage/v1"
)

// detacher answers by the volume, and has no batch of its own.
type detacher struct {
	Storage
	Attacher
}

func (detacher) Detach(_ context.Context, _ Driver, v Volume, _ string) error {
	switch v.ExternalID {
	case "busy":
		return status.Error(codes.FailedPrecondition, "in use")
	case "plain":
		return errors.New("without a code")
	case "panics":
		panic("in one of a batch")
	}
	return nil
}

func detaches(volumes ...string) (reqs []DetachRequest) {
	for _, v := range volumes {
		reqs = append(reqs, DetachRequest{Volume: Volume{ExternalID: v}, NodeID: "node of " + v})
	}
	return reqs
}

// TestDetachBatch checks that each volume of a batch has the result that Detach gives.
func TestDetachBatch(t *testing.T) {
	conn, stop, err := inprocess.Serve(sdk.Info{Name: "batches", Version: "1.0.0"}, Plugin(detacher{}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	c := NewClient(conn)
	reqs := detaches("well", "busy", "panics", "plain", "well")
	errs, err := c.DetachBatch(t.Context(), Driver{}, reqs)
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range []codes.Code{codes.OK, codes.FailedPrecondition, codes.Internal, codes.Internal, codes.OK} {
		alone := c.Detach(t.Context(), Driver{}, reqs[n].Volume, reqs[n].NodeID)
		if status.Code(errs[n]) != want || status.Code(alone) != want {
			t.Errorf("%s: %v, alone %v, want %v", reqs[n].Volume.ExternalID, errs[n], alone, want)
		}
	}
	for _, n := range []int{0, MaxDetaches + 1} {
		if _, err := c.DetachBatch(t.Context(), Driver{}, make([]DetachRequest, n)); status.Code(err) !=
			codes.InvalidArgument {
			t.Errorf("%d requests: %v", n, err)
		}
	}
}

// oddAnswers gives the same results to all batches.
type oddAnswers struct {
	grpc.ClientConnInterface
	results []*storagev1.DetachResult
}

func (o oddAnswers) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	reply.(*storagev1.DetachBatchResponse).Results = o.results //nolint:forcetypeassert // no other call is made
	return nil
}

// TestDetachBatchOfOthers checks that an answer is refused as a whole if its results are not those of the requests.
func TestDetachBatchOfOthers(t *testing.T) {
	well := func(id string) *storagev1.DetachResult {
		return &storagev1.DetachResult{ExternalId: id, NodeId: "node of " + id}
	}
	for name, results := range map[string][]*storagev1.DetachResult{
		"too few":      {well("a")},
		"too many":     {well("a"), well("b"), well("c")},
		"order":        {well("b"), well("a")},
		"another node": {well("a"), {ExternalId: "b", NodeId: "node of a"}},
		"none":         {well("a"), nil},
	} {
		errs, err := NewClient(oddAnswers{results: results}).DetachBatch(t.Context(), Driver{}, detaches("a", "b"))
		if errs != nil || status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "report this") {
			t.Errorf("%s: %v, %v", name, errs, err)
		}
	}
	codeless := well("b")
	codeless.Message = "failed"
	errs, err := NewClient(oddAnswers{results: []*storagev1.DetachResult{well("a"), codeless}}).DetachBatch(t.Context(),
		Driver{}, detaches("a", "b"))
	if err != nil || errs[0] != nil || status.Code(errs[1]) != codes.Internal {
		t.Errorf("an error without a code: %v, %v", errs, err)
	}
}
