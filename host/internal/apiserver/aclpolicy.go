package apiserver

import (
	"context"
	"fmt"

	"connectrpc.com/connect"

	ledger "github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/apiserver/acl"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// PutACLPolicy adds a policy, or gives one another text, which is read first.
func (s aclService) PutACLPolicy(ctx context.Context, req *connect.Request[hostv1.PutACLPolicyRequest]) (*connect.Response[hostv1.PutACLPolicyResponse], error) {
	if err := s.on(); err != nil {
		return nil, err
	}
	p := ledger.Policy{Name: req.Msg.GetName(), Description: req.Msg.GetDescription(), Rules: req.Msg.GetRules()}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if _, err := acl.Parse(p.Rules); err != nil {
		return nil, fmt.Errorf("ACL policy %q: %w", p.Name, err)
	}
	stored, err := s.cfg.Ledger.PutACLPolicies(ctx, p)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&hostv1.PutACLPolicyResponse{Policy: shownACLPolicy(stored[0])}), nil
}

// GetACLPolicy reads a policy.
func (s aclService) GetACLPolicy(ctx context.Context, req *connect.Request[hostv1.GetACLPolicyRequest]) (*connect.Response[hostv1.GetACLPolicyResponse], error) {
	if err := s.on(); err != nil {
		return nil, err
	}
	var p ledger.Policy
	err := s.cfg.Ledger.Read(ctx, func(tx *state.ReadTx) (err error) {
		p, err = tx.ACLPolicy(req.Msg.GetName())
		return err
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&hostv1.GetACLPolicyResponse{Policy: shownACLPolicy(p)}), nil
}

// ListACLPolicies lists policies by name.
func (s aclService) ListACLPolicies(ctx context.Context, _ *connect.Request[hostv1.ListACLPoliciesRequest]) (*connect.Response[hostv1.ListACLPoliciesResponse], error) {
	if err := s.on(); err != nil {
		return nil, err
	}
	resp := &hostv1.ListACLPoliciesResponse{}
	err := s.cfg.Ledger.Read(ctx, func(tx *state.ReadTx) error {
		all, err := tx.ACLPolicies()
		for _, p := range all {
			resp.Policies = append(resp.Policies, shownACLPolicy(p))
		}
		return err
	})
	return connect.NewResponse(resp), err
}

// DeleteACLPolicy takes a policy away.
func (s aclService) DeleteACLPolicy(ctx context.Context, req *connect.Request[hostv1.DeleteACLPolicyRequest]) (*connect.Response[hostv1.DeleteACLPolicyResponse], error) {
	if err := s.on(); err != nil {
		return nil, err
	}
	deleted, err := s.cfg.Ledger.DeleteACLPolicies(ctx, req.Msg.GetName())
	if err == nil && len(deleted) == 0 {
		err = fmt.Errorf("%w: there is no policy %q", ledger.ErrPolicyNotFound, shortened(req.Msg.GetName()))
	}
	return connect.NewResponse(&hostv1.DeleteACLPolicyResponse{}), err
}

// PutACLRole adds a role, or gives one other policies.
func (s aclService) PutACLRole(ctx context.Context, req *connect.Request[hostv1.PutACLRoleRequest]) (*connect.Response[hostv1.PutACLRoleResponse], error) {
	if err := s.on(); err != nil {
		return nil, err
	}
	r := ledger.Role{Name: req.Msg.GetName(), Description: req.Msg.GetDescription(), Policies: notEmpty(req.Msg.GetPolicies())}
	if err := r.Validate(); err != nil {
		return nil, err
	}
	stored, err := s.cfg.Ledger.PutACLRoles(ctx, r)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&hostv1.PutACLRoleResponse{Role: shownACLRole(stored[0])}), nil
}

// GetACLRole reads a role.
func (s aclService) GetACLRole(ctx context.Context, req *connect.Request[hostv1.GetACLRoleRequest]) (*connect.Response[hostv1.GetACLRoleResponse], error) {
	if err := s.on(); err != nil {
		return nil, err
	}
	var r ledger.Role
	err := s.cfg.Ledger.Read(ctx, func(tx *state.ReadTx) (err error) {
		r, err = tx.ACLRole(req.Msg.GetName())
		return err
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&hostv1.GetACLRoleResponse{Role: shownACLRole(r)}), nil
}

// ListACLRoles lists roles by name.
func (s aclService) ListACLRoles(ctx context.Context, _ *connect.Request[hostv1.ListACLRolesRequest]) (*connect.Response[hostv1.ListACLRolesResponse], error) {
	if err := s.on(); err != nil {
		return nil, err
	}
	resp := &hostv1.ListACLRolesResponse{}
	err := s.cfg.Ledger.Read(ctx, func(tx *state.ReadTx) error {
		all, err := tx.ACLRoles()
		for _, r := range all {
			resp.Roles = append(resp.Roles, shownACLRole(r))
		}
		return err
	})
	return connect.NewResponse(resp), err
}

// DeleteACLRole takes a role away.
func (s aclService) DeleteACLRole(ctx context.Context, req *connect.Request[hostv1.DeleteACLRoleRequest]) (*connect.Response[hostv1.DeleteACLRoleResponse], error) {
	if err := s.on(); err != nil {
		return nil, err
	}
	deleted, err := s.cfg.Ledger.DeleteACLRoles(ctx, req.Msg.GetName())
	if err == nil && len(deleted) == 0 {
		err = fmt.Errorf("%w: there is no role %q", ledger.ErrRoleNotFound, shortened(req.Msg.GetName()))
	}
	return connect.NewResponse(&hostv1.DeleteACLRoleResponse{}), err
}

func shownACLPolicy(p ledger.Policy) *hostv1.ACLPolicy {
	return &hostv1.ACLPolicy{
		Name: p.Name, Description: p.Description, Rules: p.Rules, ModifiedAt: timestamp(p.ModifiedAt), ModifyIndex: p.ModifyIndex,
	}
}

func shownACLRole(r ledger.Role) *hostv1.ACLRole {
	return &hostv1.ACLRole{
		Name: r.Name, Description: r.Description, Policies: r.Policies, ModifiedAt: timestamp(r.ModifiedAt), ModifyIndex: r.ModifyIndex,
	}
}
