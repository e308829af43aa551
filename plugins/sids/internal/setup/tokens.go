package setup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/pannier/pannier/internal/atomicfile"
	"github.com/pannier/pannier/plugins/internal/consul"
)

// The policies, and what they allow.
const (
	nodePolicy = "pannier-node"
	sidsPolicy = "pannier-sids"

	sidsRules = "acl = \"write\"\n"
)

// nodeRights are what the node's policy may allow besides.
type nodeRights struct{ gateways, intentions bool }

func (r nodeRights) rules() string {
	services, mesh := "", ""
	if r.intentions {
		services = "  intentions = \"write\"\n"
	}
	if r.gateways {
		mesh = "mesh = \"write\"\n"
	}
	return "service_prefix \"\" {\n  policy = \"write\"\n" + services + "}\nnode_prefix \"\" {\n  policy = \"read\"\n}\n" +
		"agent_prefix \"\" {\n  policy = \"read\"\n}\n" + mesh
}

// nodeRules are the rules of the node's policy, in place of the present ones. The policy is for all hosts: what another
// one needs stays.
func (s *setup) nodeRules(has string) string {
	for _, other := range []nodeRights{{}, {gateways: true}, {intentions: true}, {gateways: true, intentions: true}} {
		if has == other.rules() {
			return nodeRights{s.Gateways || other.gateways, s.Intentions || other.intentions}.rules()
		}
	}
	return nodeRights{s.Gateways, s.Intentions}.rules()
}

// policy makes sure of a policy; rules returns what its rules should be, in place of the present ones.
func (s *setup) policy(ctx context.Context, name string, rules func(has string) string) error {
	object := "policy " + name
	is, _, err := s.acl.PolicyReadByName(name, s.reading(ctx))
	if absent(err) {
		is, err = nil, nil
	}
	if err != nil {
		return s.fail(err, "read the %s", object)
	}
	if is == nil {
		return s.settle(object, "is missing", "made", func() error {
			_, _, err := s.acl.PolicyCreate(&api.ACLPolicy{Name: name, Description: mark, Rules: rules("")}, s.writing(ctx))
			return err
		})
	}
	if !strings.HasSuffix(is.Description, mark) {
		return foreign(object)
	}
	fault := ""
	if is.Rules != rules(is.Rules) {
		fault = "differs in its rules"
	} else if len(is.Datacenters) > 0 {
		fault = "is for some datacenters only"
	}
	return s.settle(object, fault, "updated", func() error {
		is.Rules, is.Datacenters = rules(is.Rules), nil
		_, _, err := s.acl.PolicyUpdate(is, s.writing(ctx))
		return err
	})
}

// token makes sure that a file has a token that Consul knows. If it has none, it gets that of an earlier run, or a new
// one.
func (s *setup) token(ctx context.Context, whose, policy, file string) error {
	object := "token in " + file
	_, fault, err := s.tokenIn(ctx, file)
	if err != nil {
		return err
	}
	return s.settle(object, fault, "made", func() error {
		token, err := s.earlier(ctx, whose+" "+mark, policy)
		if err == nil && token == nil {
			token, _, err = s.acl.TokenCreate(&api.ACLToken{
				Description: whose + " " + mark, Policies: []*api.ACLLink{{Name: policy}},
			}, s.writing(ctx))
		}
		if err != nil {
			return err
		}
		return atomicfile.WriteFile(file, []byte(token.SecretID+"\n"))
	})
}

// tokenIn returns the token whose secret a file has, and what is wrong with that; the token is nil if there is none.
func (s *setup) tokenIn(ctx context.Context, file string) (token *api.ACLToken, fault string, err error) {
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return nil, "is missing", nil
	}
	secret, err := consul.Token(file)
	if err != nil {
		return nil, "", err
	}
	client, err := s.pool.Client(s.Consul, secret)
	if err != nil {
		return nil, "", err
	}
	token, _, err = client.ACL().TokenReadSelf(s.reading(ctx))
	switch {
	case err == nil:
		return token, "", nil
	case absent(err), consul.Answered(err, http.StatusForbidden):
		return nil, "is unknown to Consul", nil
	}
	return nil, "", s.fail(err, "read the token in %s", file)
}

// earlier returns a token that an earlier run has made; nil: there is none.
func (s *setup) earlier(ctx context.Context, description, policy string) (*api.ACLToken, error) {
	entries, _, err := s.acl.TokenList(s.reading(ctx))
	if err != nil {
		return nil, err
	}
	for _, e := range consul.Present(entries) {
		if e.Description == description && e.ExpirationTime == nil && len(e.Policies) == 1 && e.Policies[0].Name == policy {
			token, _, err := s.acl.TokenRead(e.AccessorID, s.reading(ctx))
			return token, err
		}
	}
	return nil, nil
}

// destroy removes what this command has made, for all hosts of this Consul.
func (s *setup) destroy(ctx context.Context) error {
	if err := s.destroyMethod(ctx); err != nil {
		return err
	}
	for _, file := range []string{s.NodeTokenFile, s.SidsTokenFile} {
		if err := s.destroyFile(ctx, file); err != nil {
			return err
		}
	}
	entries, _, err := s.acl.TokenList(s.reading(ctx))
	if err != nil {
		return s.fail(err, "list the tokens")
	}
	for _, e := range consul.Present(entries) {
		if !strings.HasSuffix(e.Description, mark) {
			continue
		}
		if err := s.remove(fmt.Sprintf("token %s (%s)", e.AccessorID, strings.TrimSuffix(e.Description, " "+mark)),
			func() error { _, err := s.acl.TokenDelete(e.AccessorID, s.writing(ctx)); return err }); err != nil {
			return err
		}
	}
	policies, _, err := s.acl.PolicyList(s.reading(ctx))
	if err != nil {
		return s.fail(err, "list the policies")
	}
	for _, p := range consul.Present(policies) {
		switch {
		case p.Name != nodePolicy && p.Name != sidsPolicy:
		case !strings.HasSuffix(p.Description, mark):
			s.step("policy "+p.Name, "was not made by this command: left", false)
		default:
			if err := s.remove("policy "+p.Name, func() error {
				_, err := s.acl.PolicyDelete(p.ID, s.writing(ctx))
				return err
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// destroyFile removes a file if the token in it is ours.
func (s *setup) destroyFile(ctx context.Context, file string) error {
	token, _, err := s.tokenIn(ctx, file)
	if err != nil || token == nil || !strings.HasSuffix(token.Description, mark) {
		return err
	}
	return s.remove("file "+file, func() error { return os.Remove(file) })
}

// remove removes an object that is there.
func (s *setup) remove(object string, do func() error) error {
	return s.settle(object, "is there", "removed", do)
}
