package storage

import (
	"context"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/internal/outcome"
	storagev1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/storage/v1"
	"github.com/pannier/pannier/sdk/wire"
)

// DetachBatch has the volumes detached by the implementation's own batch, or else by a Detach for each.
func (s *server) DetachBatch(ctx context.Context, req *storagev1.DetachBatchRequest) (*storagev1.DetachBatchResponse,
	error,
) {
	a, err := optional[Attacher](s.impl, "detach volumes")
	if err != nil {
		return nil, err
	}
	in := req.GetVolumes()
	if len(in) == 0 || len(in) > MaxDetaches {
		return nil, status.Errorf(codes.InvalidArgument, "detach a batch of %d volumes: it must have 1 to %d",
			len(in), MaxDetaches)
	}
	d, reqs := driverFrom(req.GetDriver()), each(in, func(r *storagev1.DetachedVolume) DetachRequest {
		return DetachRequest{Volume: volumeFrom(r.GetVolume()), NodeID: r.GetNodeId()}
	})
	var errs []error
	if b, ok := sdk.As[BatchDetacher](s.impl); ok {
		if errs, err = b.DetachBatch(ctx, d, reqs); err == nil && len(errs) != len(reqs) {
			err = status.Errorf(codes.Internal, "DetachBatch returned %d errors for %d requests", len(errs), len(reqs))
		}
		if err != nil {
			return nil, err
		}
	} else {
		errs = detachEach(ctx, a, d, reqs)
	}
	res := &storagev1.DetachBatchResponse{}
	for n, r := range in {
		result := &storagev1.DetachResult{ExternalId: r.GetVolume().GetExternalId(), NodeId: r.GetNodeId()}
		if errs[n] != nil {
			failed := status.Convert(outcome.Status(errs[n]))
			result.Code, result.Message = uint32(failed.Code()), failed.Message()
		}
		res.Results = append(res.Results, result)
	}
	return res, nil
}

// detachEach calls Detach for each request, all at once. A panic fails its request only.
func detachEach(ctx context.Context, a Attacher, d Driver, reqs []DetachRequest) []error {
	errs := make([]error, len(reqs))
	var all sync.WaitGroup
	for n, r := range reqs {
		all.Go(func() {
			defer outcome.Rescue(sdk.Logger(), storagev1.StorageService_DetachBatch_FullMethodName, &errs[n])
			errs[n] = a.Detach(ctx, d, r.Volume, r.NodeID)
		})
	}
	all.Wait()
	return errs
}

func (c *client) DetachBatch(ctx context.Context, d Driver, reqs []DetachRequest) ([]error, error) {
	in := &storagev1.DetachBatchRequest{
		Driver: driverTo(d), Volumes: each(reqs, func(r DetachRequest) *storagev1.DetachedVolume {
			return &storagev1.DetachedVolume{Volume: volumeTo(r.Volume), NodeId: r.NodeID}
		}),
	}
	out := &storagev1.DetachBatchResponse{}
	parts := wire.NewParts(storagev1.StorageService_Detach_FullMethodName, len(reqs), func() ([]error, error) {
		return detachErrors(reqs, out.GetResults())
	})
	if err := c.conn.Invoke(ctx, storagev1.StorageService_DetachBatch_FullMethodName, in, out, parts); err != nil {
		return nil, err
	}
	return parts.Errors()
}

// detachErrors returns the error of each result, or refuses all of them: if they are not those of the requests, a
// volume that is still attached may be taken for a detached one.
func detachErrors(reqs []DetachRequest, results []*storagev1.DetachResult) ([]error, error) {
	if len(results) != len(reqs) {
		return nil, status.Errorf(codes.Internal,
			"DetachBatch: the plugin gave %d results for %d requests: report this to its author", len(results), len(reqs))
	}
	errs := make([]error, len(reqs))
	for n, r := range results {
		switch {
		case r.GetExternalId() != reqs[n].Volume.ExternalID || r.GetNodeId() != reqs[n].NodeID:
			return nil, status.Errorf(codes.Internal,
				"DetachBatch: the plugin gave the result of volume %q on node %q where that of volume %q on node %q belongs: "+
					"report this to its author", r.GetExternalId(), r.GetNodeId(), reqs[n].Volume.ExternalID, reqs[n].NodeID)
		case r.GetCode() != 0:
			errs[n] = status.Error(codes.Code(r.GetCode()), r.GetMessage())
		case r.GetMessage() != "":
			errs[n] = status.Errorf(codes.Internal, "DetachBatch: the plugin gave an error without a code: %s",
				r.GetMessage())
		}
	}
	return errs, nil
}
