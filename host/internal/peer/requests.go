package peer

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/fencing/lease"
	peerv1 "github.com/pannier/pannier/host/internal/peer/proto/pannier/peer/v1"
	"github.com/pannier/pannier/sdk/storage"
)

// Heartbeat tells the leader that this node is there (lease.Servers). The leader finds out
// first whether it still leads.
func (s *Servers) Heartbeat(ctx context.Context, node string, seq uint64) (answer lease.Answer, err error) {
	var term uint64
	err = s.do(ctx, request{
		patience: heartbeatPatience,
		here: func(ctx context.Context, l *Leader) error {
			term = l.Ledger.Term()
			answer, err = l.Heartbeats.Answer(ctx, node, seq)
			return err
		},
		there: func(ctx context.Context, c service) error {
			resp, err := c.Heartbeat(ctx, &peerv1.HeartbeatRequest{Node: node, Sequence: seq})
			term = resp.GetTerm()
			answer = lease.Answer{
				Status: claim.NodeStatus(resp.GetStatus()), Index: resp.GetIndex(),
				Liveness: claim.Liveness{
					HeartbeatTTL: resp.GetHeartbeatTtl().AsDuration(), StopAfter: resp.GetStopAfter().AsDuration(), Margin: resp.GetMargin().AsDuration(),
				},
			}
			return err
		},
	})
	if err == nil {
		err = s.cfg.Terms.Seen(term)
	}
	if err != nil {
		return lease.Answer{}, fmt.Errorf("heartbeat of node %q: %w", node, err)
	}
	return answer, nil
}

// Attach makes a volume that this node holds a claim on available here (CSI spec,
// ControllerPublishVolume), through a controller that the leader picks.
func (s *Servers) Attach(ctx context.Context, v claim.Volume, capability storage.Capability, node string) (publishContext map[string]string, err error) {
	err = s.do(ctx, request{
		patience: callPatience,
		here: func(ctx context.Context, l *Leader) error {
			publishContext, err = l.Attach(ctx, node, v.VolumeRef, capability)
			return err
		},
		there: func(ctx context.Context, c service) error {
			resp, err := c.Attach(ctx, &peerv1.AttachRequest{
				Node: node, Namespace: v.Namespace, Volume: v.ID,
				AccessMode: string(capability.AccessMode), AttachmentMode: string(capability.AttachmentMode),
				FsType: capability.FSType, MountFlags: capability.MountFlags, VolumeMountGroup: capability.VolumeMountGroup,
			})
			publishContext = resp.GetPublishContext()
			return err
		},
	})
	return publishContext, err
}

// VolumeSecrets are the secrets of a volume that this node holds a claim on.
func (s *Servers) VolumeSecrets(ctx context.Context, v claim.Volume) (secrets map[string]string, err error) {
	if len(v.SealedSecrets) == 0 {
		return nil, nil
	}
	err = s.do(ctx, request{
		patience: queryPatience,
		here: func(ctx context.Context, l *Leader) error {
			secrets, err = l.VolumeSecrets(ctx, s.cfg.Name, v.VolumeRef)
			return err
		},
		there: func(ctx context.Context, c service) error {
			resp, err := c.VolumeSecrets(ctx, &peerv1.VolumeSecretsRequest{Node: s.cfg.Name, Namespace: v.Namespace, Volume: v.ID})
			secrets = resp.GetSecrets()
			return err
		},
	})
	return secrets, err
}

// StopWorkload asks for the end of a workload on a node that one of this node's waits for,
// and does not wait. Which node it is on, the leader looks up.
func (s *Servers) StopWorkload(ctx context.Context, _ string, ref claim.WorkloadRef, reason string) error {
	return s.do(ctx, request{
		patience: callPatience,
		here:     func(ctx context.Context, l *Leader) error { return l.Replace(ctx, s.cfg.Name, ref, reason) },
		there: func(ctx context.Context, c service) error {
			_, err := c.ReplaceWorkload(ctx, &peerv1.ReplaceWorkloadRequest{
				Node: s.cfg.Name, Namespace: ref.Namespace, Workload: ref.ID, Reason: reason,
			})
			return err
		},
	})
}

// IntendToken notes in the ledger that Consul will be asked for a token.
func (s *Servers) IntendToken(ctx context.Context, t claim.Token) error {
	encoded, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return s.do(ctx, request{
		patience: callPatience,
		here:     func(ctx context.Context, l *Leader) error { return l.Tokens.Intend(ctx, t) },
		there: func(ctx context.Context, c service) error {
			_, err := c.IntendToken(ctx, &peerv1.IntendTokenRequest{Node: s.cfg.Name, Token: encoded})
			return err
		},
	})
}

// DeriveToken asks Consul, through the leader, for the token that the ledger knows as t.ID.
func (s *Servers) DeriveToken(ctx context.Context, t claim.Token) (derived claim.Token, secret string, err error) {
	encoded, err := json.Marshal(t)
	if err != nil {
		return derived, "", err
	}
	err = s.do(ctx, request{
		patience: callPatience,
		here: func(ctx context.Context, l *Leader) error {
			derived, secret, err = l.Tokens.Derive(ctx, t)
			return err
		},
		there: func(ctx context.Context, c service) error {
			resp, err := c.DeriveToken(ctx, &peerv1.DeriveTokenRequest{Node: s.cfg.Name, Token: encoded})
			if err != nil {
				return err
			}
			secret = resp.GetSecret()
			derived, err = decode[claim.Token](resp.GetToken())
			return err
		},
	})
	return derived, secret, err
}

// RevokeToken ends a token, through the leader.
func (s *Servers) RevokeToken(ctx context.Context, t claim.Token, secret string) error {
	encoded, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return s.do(ctx, request{
		patience: callPatience,
		here:     func(ctx context.Context, l *Leader) error { return l.RevokeToken(ctx, s.cfg.Name, t, secret) },
		there: func(ctx context.Context, c service) error {
			_, err := c.RevokeToken(ctx, &peerv1.RevokeTokenRequest{Node: s.cfg.Name, Token: encoded, Secret: secret})
			return err
		},
	})
}
