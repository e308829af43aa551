package nodes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/internal/errcode"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// certificateValidity is the validity of certificates that are signed for hosts, which renew them.
const certificateValidity = 365 * 24 * time.Hour

var (
	errSignsNone = errcode.FailedPrecondition.New("this agent signs no certificates: call a server with tls { ca_key_file }, " +
		"or make them by hand (docs/operations/forming.md)")
	errMayNotJoin = errcode.PermissionDenied.New("a host joins with a token for that: pannier cluster token create")
	errNameTaken  = errcode.AlreadyExists.New("the cluster has a host of that name")
)

// GetAuthority returns the authority's certificate.
func (h *Handler) GetAuthority(context.Context, *hostv1.GetAuthorityRequest) (*hostv1.GetAuthorityResponse, error) {
	if h.TLS == nil || h.TLS.CAKey == "" {
		return nil, errSignsNone
	}
	cert, err := os.ReadFile(h.TLS.CA)
	return &hostv1.GetAuthorityResponse{Certificate: cert, Datacenter: h.Datacenter}, err
}

// SignCertificate signs the certificate of a joining host, or renews an agent's.
func (h *Handler) SignCertificate(ctx context.Context, req *hostv1.SignCertificateRequest,
) (*hostv1.SignCertificateResponse, error) {
	c := call.CallerOf(ctx)
	id := pki.Identity{Name: req.GetName(), DC: h.Datacenter}
	switch renews := c.Cert != nil && c.Asker == "" && c.Accessor == ""; {
	case c.Type == acl.JoinServer:
		id.Role = pki.Server
	case c.Type == acl.JoinNode:
		id.Role = pki.Node
	case renews && c.Cert.Role != pki.CLI && c.Cert.Name == req.GetName():
		id.Role = c.Cert.Role
	default:
		return nil, fmt.Errorf("sign a certificate for %q: %w", call.Shortened(req.GetName()), errMayNotJoin)
	}
	if h.TLS == nil || h.TLS.CAKey == "" {
		return nil, errSignsNone
	}
	authority, err := pki.ReadAuthority(h.TLS.CA, h.TLS.CAKey)
	if err != nil {
		return nil, err
	}
	resp := &hostv1.SignCertificateResponse{}
	if c.Type.Joins() {
		if err := h.free(ctx, id.Name); err != nil {
			return nil, err
		}
		if resp.Joining, err = h.joining(id.Role); err != nil {
			return nil, err
		}
	}
	resp.Certificate, err = authority.Sign(req.GetRequest(), pki.Request{Identity: id, Validity: certificateValidity})
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	h.Log.Info("a certificate was signed", "for", id, "joins", c.Type.Joins())
	return resp, nil
}

// free refuses the name of a host that the cluster has: a certificate would make the caller that host.
func (h *Handler) free(ctx context.Context, name string) error {
	m, known := h.Discovery.Member(name)
	taken := known && m.Status != discovery.Left
	if !taken {
		_, err := call.Get(ctx, h.Ledger, (*state.ReadTx).Node, name)
		if err != nil && !errors.Is(err, claim.ErrNodeNotFound) {
			return err
		}
		taken = err == nil
	}
	if taken {
		return fmt.Errorf("join as %q: %w: set another name in the agent's configuration, or forget that host if it is gone "+
			"for good: pannier node purge %s", name, errNameTaken, name)
	}
	return nil
}

// joining returns what a host of a role needs beside its certificate.
func (h *Handler) joining(role pki.Role) (*hostv1.Joining, error) {
	j := &hostv1.Joining{}
	keys, err := h.Discovery.ListKeys()
	for key := range keys.Primary {
		if keys.Primary[key] > keys.Primary[j.GetGossipKey()] {
			j.GossipKey = key
		}
	}
	if j.GetGossipKey() == "" {
		return nil, fmt.Errorf("find the key of the gossip: %w", err)
	}
	for _, m := range h.Discovery.Members() {
		if m.Role == discovery.Server && m.Status == discovery.Alive {
			j.Addresses = append(j.Addresses, m.Gossip)
		}
	}
	if role == pki.Server {
		j.AuthorityKey, err = os.ReadFile(h.TLS.CAKey)
		return j, err
	}
	return j, nil
}
