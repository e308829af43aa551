package peer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/secrets"
	peerv1 "github.com/pannier/pannier/host/internal/peer/proto/pannier/peer/v1"
	"github.com/pannier/pannier/host/internal/peer/route"
)

// keysTimeout bounds a call to one server that is asked for keys, or given one.
const keysTimeout = 5 * time.Second

// SecretsKeys asks the other servers for keys by their IDs, until all keys are found or all servers were asked. The
// error says which servers did not answer; the keys that were found are returned with it.
func (s *Servers) SecretsKeys(ctx context.Context, ids ...string) (found []secrets.Key, err error) {
	want := map[string]bool{}
	for _, id := range ids {
		want[id] = true
	}
	var errs []error
	for _, m := range s.Servers() {
		if m.Name == s.cfg.Name || len(want) == 0 {
			continue
		}
		resp := &peerv1.SecretsKeysResponse{}
		errs = append(errs, s.callServer(ctx, m, func(ctx context.Context, c peerv1.ServersServiceClient) (err error) {
			resp, err = c.SecretsKeys(ctx, &peerv1.SecretsKeysRequest{Node: s.cfg.Name, Ids: ids})
			return err
		}))
		for _, material := range resp.GetKeys() {
			k, err := secrets.ParseKey(material)
			if err == nil && want[k.ID()] {
				delete(want, k.ID())
				found = append(found, k)
			}
		}
	}
	return found, errors.Join(errs...)
}

// OfferSecretsKey sends a server a key that the ledger is about to name. When the error is nil, the server has written
// it to its disk. Only the leader may call it.
func (s *Servers) OfferSecretsKey(ctx context.Context, server string, key secrets.Key) error {
	for _, m := range s.Servers() {
		if m.Name == server {
			leader := s.local.Load().Ledger
			ctx, err := expect(withTerm(ctx, leader.Term()), leader, server)
			if err != nil {
				return err
			}
			return s.callServer(ctx, m,
				func(ctx context.Context, c peerv1.ServersServiceClient) error {
					_, err := c.OfferSecretsKey(ctx, &peerv1.OfferSecretsKeyRequest{Node: s.cfg.Name, Key: key.Material()})
					return err
				})
		}
	}
	return fmt.Errorf("server %q is no member of the cluster now (see: pannier server members)", server)
}

// callServer calls one server, whether it leads or not.
func (s *Servers) callServer(ctx context.Context, m route.Member,
	fn func(ctx context.Context, c peerv1.ServersServiceClient) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, keysTimeout)
	defer cancel()
	to, err := s.client(m)
	if err == nil {
		err = fn(s.identify(ctx), to)
	}
	if err = received(err); err != nil {
		return fmt.Errorf("server %q: %w", m.Name, err)
	}
	return nil
}

func (s serversService) SecretsKeys(_ context.Context, req *peerv1.SecretsKeysRequest) (*peerv1.SecretsKeysResponse,
	error,
) {
	resp := &peerv1.SecretsKeysResponse{}
	for _, id := range req.GetIds() {
		if k, ok := s.leader.Keys.Get(id); ok {
			resp.Keys = append(resp.Keys, k.Material())
		}
	}
	return resp, nil
}

func (s serversService) OfferSecretsKey(_ context.Context,
	req *peerv1.OfferSecretsKeyRequest,
) (*peerv1.OfferSecretsKeyResponse, error) {
	k, err := secrets.ParseKey(req.GetKey())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return &peerv1.OfferSecretsKeyResponse{}, s.leader.Keys.Offer(k)
}
