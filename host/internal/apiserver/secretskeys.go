package apiserver

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/host/internal/secrets/rotation"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// SecretsKeys are the keys that seal secrets in the ledger (sealing.Keeper).
type SecretsKeys interface {
	Status(ctx context.Context) (rotation.Status, error)
	// Rotate lets a new key seal from now on, and returns its id.
	Rotate(ctx context.Context) (id string, err error)
}

// secretsService serves pannier.host.v1.SecretsService.
type secretsService struct{ *Server }

// errNoKeys: only servers have keys.
var errNoKeys = errors.New("this agent keeps no ledger, and no keys")

// GetSecretsStatus tells which keys there are.
func (s secretsService) GetSecretsStatus(ctx context.Context, _ *connect.Request[hostv1.GetSecretsStatusRequest]) (*connect.Response[hostv1.GetSecretsStatusResponse], error) {
	if s.cfg.SecretsKeys == nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, errNoKeys)
	}
	status, err := s.cfg.SecretsKeys.Status(ctx)
	if err != nil {
		return nil, err
	}
	resp := &hostv1.GetSecretsStatusResponse{Problem: status.Problem}
	for _, k := range status.Keys {
		resp.Keys = append(resp.Keys, &hostv1.SecretsKey{
			Id: k.ID, Active: k.ID == status.Active, AddedAt: timestamp(k.AddedAt), Sealed: int64(k.Sealed), Here: k.Here,
		})
	}
	return connect.NewResponse(resp), nil
}

// RotateSecretsKey lets a new key seal.
func (s secretsService) RotateSecretsKey(ctx context.Context, _ *connect.Request[hostv1.RotateSecretsKeyRequest]) (*connect.Response[hostv1.RotateSecretsKeyResponse], error) {
	if s.cfg.SecretsKeys == nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, errNoKeys)
	}
	id, err := s.cfg.SecretsKeys.Rotate(ctx)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&hostv1.RotateSecretsKeyResponse{Id: id}), nil
}
