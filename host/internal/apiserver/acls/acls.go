package acls

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster"
	ledger "github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/apiserver/acl"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/internal/errcode"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// Handler serves pannier.host.v1.ACLService.
type Handler struct {
	Name string // of this server
	// DataDir is where an operator may allow another bootstrap.
	DataDir string
	Log     hclog.Logger
	Ledger  *cluster.Node
}

// ErrOff refuses every call while ACLs are off: tokens and policies that anybody made now would count once ACLs are
// turned on.
var ErrOff = errcode.FailedPrecondition.New("ACLs are off, so there is nothing to manage: write acl { enabled = true } " +
	"into the configuration of each agent and start it again")

// resetFile, in a server's data directory, allows another bootstrap.
const resetFile = "acl-bootstrap-reset"

// BootstrapACL makes the first management token. No token can identify the caller yet, so it must be root on a server
// or have a certificate to operate the cluster.
func (h *Handler) BootstrapACL(ctx context.Context,
	_ *hostv1.BootstrapACLRequest,
) (*hostv1.BootstrapACLResponse, error) {
	if c := call.CallerOf(ctx); !c.Operates() {
		return nil, connect.NewError(connect.CodePermissionDenied,
			fmt.Errorf("%s may not make the first token: run it as root on a server, or with a certificate of the role cli",
				c.Who()))
	}
	secret, token := newToken(call.CallerOf(ctx).Key, "bootstrap", ledger.Management)
	made, err := cluster.Apply(ctx, h.Ledger, &command.BootstrapACL{Token: token})
	made, err = h.madeBefore(ctx, token, made, err)
	var before *ledger.BootstrappedError
	if errors.As(err, &before) {
		made, err = h.bootstrapAgain(ctx, token, before)
	}
	return &hostv1.BootstrapACLResponse{Token: shownACLToken(made), Secret: secret}, err
}

// bootstrapAgain makes another first token if an operator has allowed that by a file on this server. The file counts
// once.
func (h *Handler) bootstrapAgain(ctx context.Context, token ledger.Token,
	before *ledger.BootstrappedError,
) (ledger.Token, error) {
	path := filepath.Join(h.DataDir, resetFile)
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return token, fmt.Errorf("check whether ACLs may be bootstrapped again: %w", err)
	}
	reset, parseErr := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || parseErr != nil || reset != before.ResetIndex {
		return token, fmt.Errorf(
			"%w; if the management tokens are lost, write %d into %s on the server %q, which leads, and run it again: pannier acl bootstrap",
			ledger.ErrBootstrapped, before.ResetIndex, path, h.Name)
	}
	made, err := cluster.Apply(ctx, h.Ledger, &command.BootstrapACL{Token: token, ResetIndex: reset})
	if err == nil {
		if err := os.Remove(path); err != nil {
			h.Log.Warn("the file that allowed another ACL bootstrap could not be removed; it is ignored from now on", "path",
				path, "error", err)
		}
	}
	return made, err
}

// CreateACLToken makes a token. Its secret is not stored.
func (h *Handler) CreateACLToken(ctx context.Context,
	m *hostv1.CreateACLTokenRequest,
) (*hostv1.CreateACLTokenResponse, error) {
	secret, token := newToken(call.CallerOf(ctx).Key, m.GetName(), cmp.Or(ledger.TokenType(m.GetType()), ledger.Client))
	token.Policies, token.Roles = call.NotEmpty(m.GetPolicies()), call.NotEmpty(m.GetRoles())
	if m.GetTtl() != nil {
		ttl := m.GetTtl().AsDuration()
		if !m.GetTtl().IsValid() || ttl <= 0 {
			return nil, call.Invalid("ACL token", "ttl", "must be above 0")
		}
		token.ExpiresAt = time.Now().Add(ttl)
	}
	if err := token.Validate(time.Now()); err != nil {
		return nil, err
	}
	tokens, err := cluster.Apply(ctx, h.Ledger, &command.PutACLTokens{Tokens: []ledger.Token{token}})
	if err == nil {
		token = tokens[0]
	}
	made, err := h.madeBefore(ctx, token, token, err)
	return &hostv1.CreateACLTokenResponse{Token: shownACLToken(made), Secret: secret}, err
}

// newToken returns a token with a new secret of 130 random bits. All attempts of one forwarded call get the same
// secret, since the first answer may have been lost.
func newToken(call, name string, typ ledger.TokenType) (secret string, t ledger.Token) {
	if call == "" {
		call = rand.Text()
	}
	accessor, chance := sha256.Sum256([]byte("accessor of "+call)), sha256.Sum256([]byte("secret of "+call))
	secret = base32.StdEncoding.EncodeToString(chance[:])[:26]
	return secret, ledger.Token{
		Accessor: fmt.Sprintf("%x", accessor[:8]), SecretHash: ledger.Hash(secret), Name: name,
		Type: typ,
	}
}

// madeBefore returns the token that an earlier attempt of the same call has made, in place of the error that it
// exists.
func (h *Handler) madeBefore(ctx context.Context, want, made ledger.Token, refusal error) (ledger.Token, error) {
	if !errors.Is(refusal, claim.ErrConflict) && !errors.Is(refusal, ledger.ErrBootstrapped) {
		return made, refusal
	}
	standing, err := call.Get(ctx, h.Ledger, (*state.ReadTx).ACLToken, want.Accessor)
	if err != nil || standing.SecretHash != want.SecretHash {
		return made, refusal
	}
	return standing, nil
}

// GetACLToken reads a token by its accessor.
func (h *Handler) GetACLToken(ctx context.Context,
	req *hostv1.GetACLTokenRequest,
) (*hostv1.GetACLTokenResponse, error) {
	token, err := call.Get(ctx, h.Ledger, (*state.ReadTx).ACLToken, req.GetAccessor())
	return &hostv1.GetACLTokenResponse{Token: shownACLToken(token)}, err
}

// ListACLTokens lists all tokens, the oldest first.
func (h *Handler) ListACLTokens(ctx context.Context,
	_ *hostv1.ListACLTokensRequest,
) (*hostv1.ListACLTokensResponse, error) {
	tokens, err := call.Reading(ctx, h.Ledger, (*state.ReadTx).ACLTokens)
	slices.SortFunc(tokens, func(a, b ledger.Token) int {
		return cmp.Or(cmp.Compare(a.CreateIndex, b.CreateIndex), cmp.Compare(a.Accessor, b.Accessor))
	})
	return &hostv1.ListACLTokensResponse{Tokens: call.Each(tokens, shownACLToken)}, err
}

// DeleteACLToken deletes a token.
func (h *Handler) DeleteACLToken(ctx context.Context,
	req *hostv1.DeleteACLTokenRequest,
) (*hostv1.DeleteACLTokenResponse, error) {
	deleted, err := cluster.Apply(ctx, h.Ledger, &command.DeleteACLTokens{Accessors: []string{req.GetAccessor()}})
	if err == nil && len(deleted) == 0 {
		err = fmt.Errorf("%w: no token has the accessor %q", ledger.ErrTokenNotFound, call.Shortened(req.GetAccessor()))
	}
	return &hostv1.DeleteACLTokenResponse{}, err
}

// GetACLSelf returns what the caller may do.
func (h *Handler) GetACLSelf(ctx context.Context, _ *hostv1.GetACLSelfRequest) (*hostv1.GetACLSelfResponse, error) {
	c := call.CallerOf(ctx)
	resp := &hostv1.GetACLSelfResponse{Management: c.IsManagement()}
	err := h.Ledger.Read(ctx, func(tx *state.ReadTx) error {
		if c.Accessor != "" {
			token, err := tx.ACLToken(c.Accessor)
			if err != nil {
				return err
			}
			resp.Token = shownACLToken(token)
		}
		for _, name := range c.Policies {
			p, err := tx.ACLPolicy(name)
			if errors.Is(err, ledger.ErrPolicyNotFound) {
				continue // deleted meanwhile
			}
			if err != nil {
				return err
			}
			resp.Policies = append(resp.Policies, shownACLPolicy(p))
		}
		return nil
	})
	return resp, err
}

func shownACLToken(t ledger.Token) *hostv1.ACLToken {
	return &hostv1.ACLToken{
		Accessor: t.Accessor, Name: t.Name, Type: string(t.Type), Policies: t.Policies, Roles: t.Roles,
		CreatedAt: call.Time(t.CreatedAt), ExpiresAt: call.Time(t.ExpiresAt),
	}
}

// PutACLPolicy adds a policy or replaces its text, which is parsed first.
func (h *Handler) PutACLPolicy(ctx context.Context,
	req *hostv1.PutACLPolicyRequest,
) (*hostv1.PutACLPolicyResponse, error) {
	p := ledger.Policy{Name: req.GetName(), Description: req.GetDescription(), Rules: req.GetRules()}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if _, err := acl.Parse(p.Rules); err != nil {
		return nil, fmt.Errorf("ACL policy %q: %w", p.Name, err)
	}
	stored, err := cluster.Apply(ctx, h.Ledger, &command.PutACLPolicies{Policies: []ledger.Policy{p}})
	if err != nil {
		return nil, err
	}
	return &hostv1.PutACLPolicyResponse{Policy: shownACLPolicy(stored[0])}, nil
}

// GetACLPolicy reads a policy.
func (h *Handler) GetACLPolicy(ctx context.Context,
	req *hostv1.GetACLPolicyRequest,
) (*hostv1.GetACLPolicyResponse, error) {
	p, err := call.Get(ctx, h.Ledger, (*state.ReadTx).ACLPolicy, req.GetName())
	return &hostv1.GetACLPolicyResponse{Policy: shownACLPolicy(p)}, err
}

// ListACLPolicies lists policies by name.
func (h *Handler) ListACLPolicies(ctx context.Context,
	_ *hostv1.ListACLPoliciesRequest,
) (*hostv1.ListACLPoliciesResponse, error) {
	all, err := call.Reading(ctx, h.Ledger, (*state.ReadTx).ACLPolicies)
	return &hostv1.ListACLPoliciesResponse{Policies: call.Each(all, shownACLPolicy)}, err
}

// DeleteACLPolicy deletes a policy.
func (h *Handler) DeleteACLPolicy(ctx context.Context,
	req *hostv1.DeleteACLPolicyRequest,
) (*hostv1.DeleteACLPolicyResponse, error) {
	deleted, err := cluster.Apply(ctx, h.Ledger, &command.DeleteACLPolicies{Names: []string{req.GetName()}})
	if err == nil && len(deleted) == 0 {
		err = fmt.Errorf("%w: there is no policy %q", ledger.ErrPolicyNotFound, call.Shortened(req.GetName()))
	}
	return &hostv1.DeleteACLPolicyResponse{}, err
}

// PutACLRole adds a role or replaces its policies.
func (h *Handler) PutACLRole(ctx context.Context, req *hostv1.PutACLRoleRequest) (*hostv1.PutACLRoleResponse, error) {
	r := ledger.Role{
		Name: req.GetName(), Description: req.GetDescription(),
		Policies: call.NotEmpty(req.GetPolicies()),
	}
	if err := r.Validate(); err != nil {
		return nil, err
	}
	stored, err := cluster.Apply(ctx, h.Ledger, &command.PutACLRoles{Roles: []ledger.Role{r}})
	if err != nil {
		return nil, err
	}
	return &hostv1.PutACLRoleResponse{Role: shownACLRole(stored[0])}, nil
}

// GetACLRole reads a role.
func (h *Handler) GetACLRole(ctx context.Context, req *hostv1.GetACLRoleRequest) (*hostv1.GetACLRoleResponse, error) {
	r, err := call.Get(ctx, h.Ledger, (*state.ReadTx).ACLRole, req.GetName())
	return &hostv1.GetACLRoleResponse{Role: shownACLRole(r)}, err
}

// ListACLRoles lists roles by name.
func (h *Handler) ListACLRoles(ctx context.Context,
	_ *hostv1.ListACLRolesRequest,
) (*hostv1.ListACLRolesResponse, error) {
	all, err := call.Reading(ctx, h.Ledger, (*state.ReadTx).ACLRoles)
	return &hostv1.ListACLRolesResponse{Roles: call.Each(all, shownACLRole)}, err
}

// DeleteACLRole deletes a role.
func (h *Handler) DeleteACLRole(ctx context.Context,
	req *hostv1.DeleteACLRoleRequest,
) (*hostv1.DeleteACLRoleResponse, error) {
	deleted, err := cluster.Apply(ctx, h.Ledger, &command.DeleteACLRoles{Names: []string{req.GetName()}})
	if err == nil && len(deleted) == 0 {
		err = fmt.Errorf("%w: there is no role %q", ledger.ErrRoleNotFound, call.Shortened(req.GetName()))
	}
	return &hostv1.DeleteACLRoleResponse{}, err
}

func shownACLPolicy(p ledger.Policy) *hostv1.ACLPolicy {
	return &hostv1.ACLPolicy{
		Name: p.Name, Description: p.Description, Rules: p.Rules, ModifiedAt: call.Time(
			p.ModifiedAt), ModifyIndex: p.ModifyIndex,
	}
}

func shownACLRole(r ledger.Role) *hostv1.ACLRole {
	return &hostv1.ACLRole{
		Name: r.Name, Description: r.Description, Policies: r.Policies, ModifiedAt: call.Time(
			r.ModifiedAt), ModifyIndex: r.ModifyIndex,
	}
}
