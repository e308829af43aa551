package apiserver

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	agents "github.com/pannier/pannier/host/internal/peer"
	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/system/pki"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

// TestCallers: the leader decides about what nodes do for their callers as about calls of its own API, and audits it.
func TestCallers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	h := openACLHost(t, func(c *parts) { c.Audit = NewAuditLog(path, c.Name, c.Logger) })
	h.putNode(t, "n2")
	secret := func(name, rules string) (secret, accessor string) {
		_, err := h.client.ACL.PutACLPolicy(h.ctx, &hostv1.PutACLPolicyRequest{Name: name, Rules: rules})
		check.NoError(t, err)
		made, err := h.client.ACL.CreateACLToken(h.ctx, &hostv1.CreateACLTokenRequest{Name: name, Policies: []string{name}})
		check.NoError(t, err)
		return made.GetSecret(), made.GetToken().GetAccessor()
	}
	dev, devAccessor := secret("dev", `
namespace "dev" {
  policy   = "write"
  services = ["web"]
}`)
	both, _ := secret("both", `
namespace "dev" { policy = "write" }
namespace "prod" { capabilities = ["submit-workload", "csi-mount-volume"] }`)

	node := transport.Peer{Name: "n2", DC: "dc1", Role: pki.Node}
	by := func(token string) agents.Asker { return agents.Asker{Node: node, Token: token} }
	in := func(namespace string) claim.WorkloadRef { return claim.WorkloadRef{Namespace: namespace, ID: "w"} }
	volume := claim.VolumeRef{Namespace: "dev", ID: "v"}
	c := &Callers{}
	if _, err := c.MayStart(h.ctx, by(dev), agents.Start{Ref: in("dev")}); call.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("before the server is open: %v", err)
	}
	c.Use(h.Server)

	accessor, err := c.MayStart(h.ctx, by(dev), agents.Start{
		Ref: in("dev"), Volumes: []claim.VolumeRef{volume}, Services: []string{"web"}, After: []claim.WorkloadRef{in("dev")},
	})
	check.NoError(t, err)
	if accessor != devAccessor {
		t.Errorf("the token's accessor is %q", accessor)
	}
	check.NoError(t, c.MayUse(h.ctx, by(dev), volume))
	for what, w := range map[string]agents.Start{
		"another namespace's workload": {Ref: in("prod")},
		"another service":              {Ref: in("dev"), Services: []string{"web", "payments"}},
		"another namespace's end":      {Ref: in("dev"), After: []claim.WorkloadRef{in("prod")}},
	} {
		_, err := c.MayStart(h.ctx, by(dev), w)
		if !errors.Is(err, agents.ErrDenied) || call.CodeOf(err) != connect.CodePermissionDenied ||
			!strings.Contains(err.Error(), `token "dev"`) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, err := range map[string]error{
		"a stop":             c.MayStop(h.ctx, by(dev), in("prod")),
		"a look":             c.MayUse(h.ctx, by(dev), claim.VolumeRef{Namespace: "prod", ID: "v"}),
		"a look of nobody's": c.MayUse(h.ctx, by(""), volume),
	} {
		if !errors.Is(err, agents.ErrDenied) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := c.MayUse(h.ctx, by("hunter2"), volume); call.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("an unknown token: %v", err)
	}

	// Who may stop a workload and not read it may replace it.
	_, err = c.MayStart(h.ctx, by(both), agents.Start{Ref: in("dev"), After: []claim.WorkloadRef{in("prod")}})
	check.NoError(t, err)
	check.NoError(t, c.MayStop(h.ctx, by(both), in("prod")))

	// A statement about a token ends with the token.
	granted := agents.Asker{Node: node, Granted: true, Accessor: devAccessor}
	_, err = c.MayStart(h.ctx, granted, agents.Start{Ref: in("dev")})
	check.NoError(t, err)
	_, err = h.client.ACL.DeleteACLToken(h.ctx, &hostv1.DeleteACLTokenRequest{Accessor: devAccessor})
	check.NoError(t, err)
	if _, err := c.MayStart(h.ctx, granted, agents.Start{Ref: in("dev")}); call.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("a deleted token: %v", err)
	}

	_, err = cluster.Apply(h.ctx, h.ledger, &command.SetNodeDuty{Name: "n2", Namespaces: &[]string{"dev"}})
	check.NoError(t, err)
	_, err = c.MayStart(h.ctx, by(both), agents.Start{Ref: in("dev")})
	check.NoError(t, err)
	if _, err = c.MayStart(h.ctx, by(both), agents.Start{Ref: in("prod")}); !errors.Is(err, agents.ErrDenied) ||
		!strings.Contains(err.Error(), `node "n2"`) || !strings.Contains(err.Error(), "bound to") {
		t.Errorf("a start beyond what the node is bound to: %v", err)
	}

	for what, is := range map[string]func(auditEntry) bool{
		"an allowed start": func(e auditEntry) bool {
			return e.RPC == "WorkloadService/StartWorkload" && e.Subject == "dev/w" && e.Allowed && e.Accessor == devAccessor
		},
		"a refused stop": func(e auditEntry) bool {
			return e.RPC == "WorkloadService/StopWorkload" && e.Subject == "prod/w" && !e.Allowed && e.Token == "dev" &&
				e.Code == "permission_denied"
		},
	} {
		if e := find(t, path, what, is); e.Certificate != "pannier://dc1/node/n2" || e.Node != "n1" {
			t.Errorf("%s: %+v", what, e)
		}
	}
}
