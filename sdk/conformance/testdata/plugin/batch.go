package main

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	identityv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/identity/v1"
)

// spoiled registers the SDK's service of an identity plugin, with a DeriveBatch that misbehaves in some modes.
func spoiled(mode string, register func(grpc.ServiceRegistrar)) func(grpc.ServiceRegistrar) {
	return func(r grpc.ServiceRegistrar) { register(&spoiler{ServiceRegistrar: r, mode: mode}) }
}

type spoiler struct {
	grpc.ServiceRegistrar
	mode string
}

func (s *spoiler) RegisterService(desc *grpc.ServiceDesc, impl any) {
	s.ServiceRegistrar.RegisterService(desc,
		&batches{IdentityServiceServer: impl.(identityv1.IdentityServiceServer), mode: s.mode})
}

// batches changes what the SDK answers.
type batches struct {
	identityv1.IdentityServiceServer
	mode string
}

func (b *batches) DeriveBatch(ctx context.Context, req *identityv1.DeriveBatchRequest) (*identityv1.DeriveBatchResponse,
	error) {
	if b.mode == "batch-none" {
		return nil, status.Error(codes.Unimplemented, "written before there were batches")
	}
	res, err := b.IdentityServiceServer.DeriveBatch(ctx, req)
	all := res.GetResults()
	if err != nil || len(all) < 2 {
		return res, err
	}
	switch b.mode {
	case "batch-short":
		res.Results = all[1:]
	case "batch-long":
		res.Results = append(all, all[0])
	case "batch-unordered":
		slices.Reverse(all)
	case "batch-mixed":
		all[0].Secret, all[1].Secret = all[1].Secret, all[0].Secret
	case "batch-others":
		all[0].Token, all[1].Token = all[1].Token, all[0].Token
	}
	for _, one := range all {
		switch {
		case one.GetCode() == 0:
		case b.mode == "batch-of-one":
			return nil, status.Error(codes.Code(one.GetCode()), one.GetMessage())
		case b.mode == "batch-lenient":
			one.Code, one.Message = 0, ""
		}
	}
	return res, nil
}
