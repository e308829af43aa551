package storage

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/internal/inprocess"
	storagev1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/storage/v1"
)

// detacher answers by the name of a volume.
type detacher struct{ Storage }

func (detacher) Attach(context.Context, Driver, AttachRequest) (map[string]string, error) {
	return nil, errors.ErrUnsupported
}

func (detacher) Detach(ctx context.Context, d Driver, v Volume, nodeID string) error {
	switch v.Name {
	case "refused":
		return status.Error(codes.PermissionDenied, d.ID+" "+nodeID)
	case "plain":
		return errors.New("without a code")
	case "panics":
		panic("in one of a batch")
	case "slow":
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

// whole detaches a batch in its own way.
type whole struct {
	detacher
	got []Detachment
}

func (w *whole) DetachBatch(_ context.Context, _ Driver, all []Detachment, _ time.Duration) ([]error, error) {
	w.got = all
	return []error{ErrPending, status.Error(codes.Internal, "second")}, nil
}

func detachments(names ...string) (all []Detachment) {
	for _, name := range names {
		all = append(all, Detachment{Volume: Volume{Name: name, ExternalID: "id-" + name}, NodeID: "on-" + name})
	}
	return all
}

func batches(t *testing.T, impl Storage, register func(grpc.ServiceRegistrar)) Client {
	t.Helper()
	p := Plugin(impl)
	if register != nil {
		p.Register = register
	}
	conn, stop, err := inprocess.Serve(sdk.Info{Name: "batches", Version: "1.0.0"}, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return NewClient(conn)
}

// TestDetachBatch checks that each volume has the result that Detach gives.
func TestDetachBatch(t *testing.T) {
	c := batches(t, detacher{}, nil)
	all := detachments("well", "refused", "panics", "plain", "last")
	errs, err := c.DetachBatch(t.Context(), Driver{ID: "d"}, all, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range []codes.Code{codes.OK, codes.PermissionDenied, codes.Internal, codes.Internal, codes.OK} {
		alone := c.Detach(t.Context(), Driver{ID: "d"}, all[n].Volume, all[n].NodeID)
		if status.Code(errs[n]) != want || status.Code(alone) != want {
			t.Errorf("%s: %v, alone %v", all[n].Volume.Name, errs[n], alone)
		}
	}
	if text := status.Convert(errs[1]).Message(); text != "d on-refused" {
		t.Errorf("the driver and the node of the request: %q", text)
	}
	for _, n := range []int{0, MaxDetachBatch + 1} {
		_, err := c.DetachBatch(t.Context(), Driver{}, make([]Detachment, n), time.Minute)
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%d volumes: %v", n, err)
		}
	}
}

// TestDetachBatchIsNotHeldUp checks that the others do not wait for a volume that takes longer than it may.
func TestDetachBatchIsNotHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{impl: detacher{}}
		req := &storagev1.DetachBatchRequest{WithinMs: 500}
		for _, one := range detachments("well", "slow", "refused") {
			req.Requests = append(req.Requests, &storagev1.DetachRequest{Volume: volumeTo(one.Volume)})
		}
		began := time.Now()
		res, err := s.DetachBatch(t.Context(), req)
		if err != nil || time.Since(began) != 500*time.Millisecond {
			t.Fatalf("after %s: %v", time.Since(began), err)
		}
		errs, err := batchErrors(detachments("well", "slow", "refused"), res.GetResults())
		if err != nil || errs[0] != nil || errs[1] != nil || status.Code(errs[2]) != codes.PermissionDenied {
			t.Errorf("got %v, %v", errs, err)
		}
		for n, r := range res.GetResults() {
			if r.GetPending() != (n == 1) {
				t.Errorf("result %d: %v", n, r)
			}
		}
	})
}

// TestDetachBatchOfItsOwn checks a plugin that detaches several volumes in its own way.
func TestDetachBatchOfItsOwn(t *testing.T) {
	w := &whole{}
	c := batches(t, w, nil)
	errs, err := c.DetachBatch(t.Context(), Driver{}, detachments("a", "b"), time.Minute)
	if err != nil || !errors.Is(errs[0], ErrPending) || status.Code(errs[1]) != codes.Internal || len(w.got) != 2 ||
		w.got[1].Volume.ExternalID != "id-b" || w.got[1].NodeID != "on-b" {
		t.Errorf("got %v, %v for %+v", errs, err, w.got)
	}
}

// TestDetachBatchOfAnother checks that an answer is refused as a whole if its results are not those of the requests.
func TestDetachBatchOfAnother(t *testing.T) {
	well := func(id string) *storagev1.DetachResult { return &storagev1.DetachResult{ExternalId: id} }
	for name, tc := range map[string]struct {
		results []*storagev1.DetachResult
		says    string
	}{
		"too few":   {[]*storagev1.DetachResult{well("id-a")}, "gave 1 results for 2 requests"},
		"too many":  {[]*storagev1.DetachResult{well("id-a"), well("id-b"), well("id-b")}, "gave 3 results for 2 requests"},
		"order":     {[]*storagev1.DetachResult{well("id-b"), well("id-a")}, `"id-b" where the result of "id-a" belongs`},
		"no result": {[]*storagev1.DetachResult{well("id-a"), nil}, `"" where the result of "id-b" belongs`},
	} {
		t.Run(name, func(t *testing.T) {
			c := batches(t, detacher{}, func(r grpc.ServiceRegistrar) {
				storagev1.RegisterStorageServiceServer(r, &answers{results: tc.results})
			})
			errs, err := c.DetachBatch(t.Context(), Driver{}, detachments("a", "b"), time.Minute)
			if errs != nil || status.Code(err) != codes.Internal || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, %v", errs, err)
			}
		})
	}
	c := batches(t, detacher{}, func(r grpc.ServiceRegistrar) {
		storagev1.RegisterStorageServiceServer(r, &answers{results: []*storagev1.DetachResult{
			{ExternalId: "id-a", Message: "failed"},
		}})
	})
	errs, err := c.DetachBatch(t.Context(), Driver{}, detachments("a"), time.Minute)
	if err != nil || status.Code(errs[0]) != codes.Internal {
		t.Errorf("an error without a code: %v, %v", errs, err)
	}
}

// TestDetachBatchIsOptional checks what a client sees of an older plugin.
func TestDetachBatchIsOptional(t *testing.T) {
	c := batches(t, detacher{}, func(r grpc.ServiceRegistrar) {
		old := storagev1.StorageService_ServiceDesc
		old.Methods = slices.DeleteFunc(slices.Clone(old.Methods), func(m grpc.MethodDesc) bool {
			return m.MethodName == "DetachBatch"
		})
		r.RegisterService(&old, &answers{})
	})
	_, err := c.DetachBatch(t.Context(), Driver{}, detachments("a", "b"), time.Minute)
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("got %v", err)
	}
}

// answers gives the same results to all batches.
type answers struct {
	storagev1.UnimplementedStorageServiceServer
	results []*storagev1.DetachResult
}

func (a *answers) DetachBatch(context.Context, *storagev1.DetachBatchRequest) (*storagev1.DetachBatchResponse, error) {
	return &storagev1.DetachBatchResponse{Results: a.results}, nil
}
