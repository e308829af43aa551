package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
)

// fakeACL keeps policies, roles and tokens in memory. A token's secret is "secret-" and its accessor. The
// accessor of the first token is "boss".
type fakeACL struct {
	hostv1connect.UnimplementedACLServiceHandler

	mu       sync.Mutex
	policies []*hostv1.ACLPolicy
	roles    []*hostv1.ACLRole
	tokens   []*hostv1.ACLToken
}

// caller returns the token of a call.
func (f *fakeACL) caller(ctx context.Context) (*hostv1.ACLToken, error) {
	call, _ := connect.CallInfoForHandlerContext(ctx)
	secret := call.RequestHeader().Get(api.TokenHeader)
	for _, t := range f.tokens {
		if secret == "secret-"+t.Accessor {
			return t, nil
		}
	}
	return nil, connect.NewError(connect.CodePermissionDenied, errors.New("a management token is missing"))
}

func nothing(kind, name string) error {
	return connect.NewError(connect.CodeNotFound, fmt.Errorf("ACL %s not found: there is no %s %q", kind, kind, name))
}

func (f *fakeACL) BootstrapACL(context.Context, *hostv1.BootstrapACLRequest) (*hostv1.BootstrapACLResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.tokens) > 0 {
		return nil, connect.NewError(connect.CodeFailedPrecondition,
			errors.New("ACL was bootstrapped before; write 7 into /x, and run it again: pannier acl bootstrap"))
	}
	f.tokens = append(f.tokens, &hostv1.ACLToken{
		Accessor: "boss", Name: "bootstrap", Type: "management",
		CreatedAt: ago(0),
	})
	return &hostv1.BootstrapACLResponse{Token: f.tokens[0], Secret: "secret-boss"}, nil
}

func (f *fakeACL) PutACLPolicy(ctx context.Context,
	req *hostv1.PutACLPolicyRequest,
) (*hostv1.PutACLPolicyResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.caller(ctx); err != nil {
		return nil, err
	}
	if strings.Contains(req.Rules, "quota") {
		return nil, connect.NewError(connect.CodeInvalidArgument,
			fmt.Errorf("ACL policy %q: invalid policy: line 2: unknown key %q", req.Name, "quota"))
	}
	p := &hostv1.ACLPolicy{
		Name: req.Name, Description: req.Description, Rules: req.Rules,
		ModifiedAt: ago(time.Minute),
	}
	f.policies = append(f.policies, p)
	return &hostv1.PutACLPolicyResponse{Policy: p}, nil
}

func (f *fakeACL) GetACLPolicy(_ context.Context,
	req *hostv1.GetACLPolicyRequest,
) (*hostv1.GetACLPolicyResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.policies {
		if p.Name == req.Name {
			return &hostv1.GetACLPolicyResponse{Policy: p}, nil
		}
	}
	return nil, nothing("policy", req.Name)
}

func (f *fakeACL) ListACLPolicies(context.Context,
	*hostv1.ListACLPoliciesRequest,
) (*hostv1.ListACLPoliciesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &hostv1.ListACLPoliciesResponse{Policies: f.policies}, nil
}

func (f *fakeACL) DeleteACLPolicy(_ context.Context,
	req *hostv1.DeleteACLPolicyRequest,
) (*hostv1.DeleteACLPolicyResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, p := range f.policies {
		if p.Name == req.Name {
			f.policies = append(f.policies[:i:i], f.policies[i+1:]...)
			return &hostv1.DeleteACLPolicyResponse{}, nil
		}
	}
	return nil, nothing("policy", req.Name)
}

func (f *fakeACL) PutACLRole(_ context.Context, req *hostv1.PutACLRoleRequest) (*hostv1.PutACLRoleResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &hostv1.ACLRole{
		Name: req.Name, Description: req.Description, Policies: req.Policies,
		ModifiedAt: ago(time.Minute),
	}
	f.roles = append(f.roles, r)
	return &hostv1.PutACLRoleResponse{Role: r}, nil
}

func (f *fakeACL) GetACLRole(_ context.Context, req *hostv1.GetACLRoleRequest) (*hostv1.GetACLRoleResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.roles {
		if r.Name == req.Name {
			return &hostv1.GetACLRoleResponse{Role: r}, nil
		}
	}
	return nil, nothing("role", req.Name)
}

func (f *fakeACL) ListACLRoles(context.Context, *hostv1.ListACLRolesRequest) (*hostv1.ListACLRolesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &hostv1.ListACLRolesResponse{Roles: f.roles}, nil
}

func (f *fakeACL) DeleteACLRole(_ context.Context,
	req *hostv1.DeleteACLRoleRequest,
) (*hostv1.DeleteACLRoleResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.roles) == 0 || f.roles[0].Name != req.Name {
		return nil, nothing("role", req.Name)
	}
	f.roles = f.roles[1:]
	return &hostv1.DeleteACLRoleResponse{}, nil
}

func (f *fakeACL) CreateACLToken(_ context.Context,
	req *hostv1.CreateACLTokenRequest,
) (*hostv1.CreateACLTokenResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := &hostv1.ACLToken{
		Accessor: fmt.Sprintf("acc-%d",
			len(f.tokens)), Name: req.Name, Type: req.Type, Policies: req.Policies, Roles: req.Roles, CreatedAt: ago(0),
	}
	if req.Ttl != nil {
		t.ExpiresAt = timestamppb.New(time.Now().Add(req.Ttl.AsDuration() + time.Minute))
	}
	f.tokens = append(f.tokens, t)
	return &hostv1.CreateACLTokenResponse{Token: t, Secret: "secret-" + t.Accessor}, nil
}

func (f *fakeACL) GetACLToken(_ context.Context, req *hostv1.GetACLTokenRequest) (*hostv1.GetACLTokenResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range f.tokens {
		if t.Accessor == req.Accessor {
			return &hostv1.GetACLTokenResponse{Token: t}, nil
		}
	}
	return nil, nothing("token", req.Accessor)
}

func (f *fakeACL) ListACLTokens(ctx context.Context,
	req *hostv1.ListACLTokensRequest,
) (*hostv1.ListACLTokensResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.caller(ctx); err != nil {
		return nil, err
	}
	return &hostv1.ListACLTokensResponse{Tokens: f.tokens}, nil
}

func (f *fakeACL) DeleteACLToken(_ context.Context,
	req *hostv1.DeleteACLTokenRequest,
) (*hostv1.DeleteACLTokenResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, t := range f.tokens {
		if t.Accessor == req.Accessor {
			f.tokens = append(f.tokens[:i:i], f.tokens[i+1:]...)
			return &hostv1.DeleteACLTokenResponse{}, nil
		}
	}
	return nil, nothing("token", req.Accessor)
}

func (f *fakeACL) GetACLSelf(ctx context.Context, req *hostv1.GetACLSelfRequest) (*hostv1.GetACLSelfResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, err := f.caller(ctx)
	if err != nil {
		return &hostv1.GetACLSelfResponse{}, nil // a call without a token is answered too
	}
	resp := &hostv1.GetACLSelfResponse{Token: t, Management: t.Type == "management"}
	for _, name := range t.Policies {
		resp.Policies = append(resp.Policies, &hostv1.ACLPolicy{Name: name})
	}
	return resp, nil
}
