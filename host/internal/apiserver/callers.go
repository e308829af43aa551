package apiserver

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"connectrpc.com/connect"

	ledger "github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/apiserver/acl"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	agents "github.com/pannier/pannier/host/internal/peer"
	"github.com/pannier/pannier/internal/errcode"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	v1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
	servicev1 "github.com/pannier/pannier/sdk/proto/pannier/service/v1"
)

// Callers checks for the leader what nodes do for their callers, as if the calls of the API had been made here
// (peer.Callers). A node's own agent has checked them too, but its root may have changed it. The zero value decides
// nothing until Use.
type Callers struct{ server atomic.Pointer[Server] }

// Use makes an open server decide.
func (c *Callers) Use(s *Server) { c.server.Store(s) }

// errNotOpen: nothing can be written to the audit log yet.
var errNotOpen = errcode.Unavailable.New("this server is starting: it does not check callers of nodes yet")

// MayStart implements peer.Callers.
func (c *Callers) MayStart(ctx context.Context, by agents.Asker, w agents.Start) (accessor string, err error) {
	who, err := c.may(ctx, by, v1.WorkloadServiceStartWorkloadProcedure, start(w), true)
	return who.Accessor, err
}

// MayStop implements peer.Callers.
func (c *Callers) MayStop(ctx context.Context, by agents.Asker, ref claim.WorkloadRef) error {
	_, err := c.may(ctx, by, v1.WorkloadServiceStopWorkloadProcedure,
		func(*call.Caller) any { return &hostv1.StopWorkloadRequest{Namespace: ref.Namespace, Id: ref.ID} }, true)
	return err
}

// MayUse implements peer.Callers.
func (c *Callers) MayUse(ctx context.Context, by agents.Asker, ref claim.VolumeRef) error {
	w := agents.Start{Ref: claim.WorkloadRef{Namespace: ref.Namespace}, Volumes: []claim.VolumeRef{ref}}
	_, err := c.may(ctx, by, v1.WorkloadServiceStartWorkloadProcedure, start(w), false)
	return err
}

// start is the call of the API that a node's start stands for. The ledger does not know which of the workloads that it
// waits for it replaces; their stop is checked by MayStop. So who may not read one may stop it instead.
func start(w agents.Start) func(who *call.Caller) any {
	return func(who *call.Caller) any {
		spec := &hostv1.WorkloadSpec{Namespace: w.Ref.Namespace, Id: w.Ref.ID}
		for _, ref := range w.After {
			list := &spec.After
			if !who.AllowNamespace(ref.Namespace, acl.ReadWorkload) && who.AllowNamespace(ref.Namespace, acl.SubmitWorkload) {
				list = &spec.Replaces
			}
			*list = append(*list, ref.Namespace+"/"+ref.ID)
		}
		for _, v := range w.Volumes {
			spec.Volumes = append(spec.Volumes, &hostv1.VolumeRequest{Source: v.ID})
		}
		for _, name := range w.Services {
			spec.Services = append(spec.Services, &servicev1.Service{Name: name})
		}
		return &hostv1.StartWorkloadRequest{Spec: spec}
	}
}

// may checks one call of the API, and writes it to the audit log if it is refused or noted.
func (c *Callers) may(ctx context.Context, by agents.Asker, procedure string, request func(who *call.Caller) any,
	noted bool,
) (*call.Caller, error) {
	s := c.server.Load()
	if s == nil {
		return &call.Caller{}, errNotOpen
	}
	who := &call.Caller{Peer: call.UnknownPeer(errors.New("the call came over a node")), Cert: &by.Node}
	identity, err := s.identify(ctx, by)
	if err == nil {
		err = s.bind(ctx, who)
	}
	if err == nil {
		who.Identity = identity
		who.Rules = who.Within(who.Bound)
	}
	msg := request(who)
	if err == nil {
		var lacking *connect.Error
		if err = needOf(procedure).check(who, msg); errors.As(err, &lacking) {
			err = fmt.Errorf("%w: the server that leads has checked it too: %s", agents.ErrDenied, lacking.Message())
		}
	}
	if err != nil || noted {
		s.record(who, procedure, msg, "", err == nil, call.WithCode(ctx, err))
	}
	return who, err
}

// identify looks up the token of a node's caller.
func (s *Server) identify(ctx context.Context, by agents.Asker) (acl.Identity, error) {
	if !by.Granted {
		return s.cfg.ACL.Resolve(ctx, by.Token)
	}
	hash := ""
	if by.Accessor != "" {
		token, err := call.Get(ctx, s.cfg.Ledger, (*state.ReadTx).ACLToken, by.Accessor)
		if errors.Is(err, ledger.ErrTokenNotFound) {
			return acl.Identity{}, ledger.ErrUnknownToken
		}
		if err != nil {
			return acl.Identity{}, err
		}
		hash = token.SecretHash
	}
	return s.cfg.ACL.ResolveHash(ctx, hash)
}

var _ agents.Callers = (*Callers)(nil)
