package setup

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/pannier/pannier/plugins/internal/consul"
)

const (
	defaultMethod = "pannier"
	tokenTTL      = 24 * time.Hour
	localTokens   = "local"

	// Keys of an auth method's configuration.
	keysKey = "JWTValidationPubKeys"
	urlKey  = "JWKSURL"
	caKey   = "JWKSCACert"
)

func (s *setup) method() string { return cmp.Or(s.Consul.AuthMethod, defaultMethod) }

// readMethod returns the auth method; nil: there is none.
func (s *setup) readMethod(ctx context.Context) (*api.ACLAuthMethod, error) {
	is, _, err := s.acl.AuthMethodRead(s.method(), s.reading(ctx))
	if absent(err) {
		return nil, nil
	}
	return is, s.fail(err, "read the auth method %s", s.method())
}

func (s *setup) authMethod(ctx context.Context) error {
	object := "auth method " + s.method()
	is, err := s.readMethod(ctx)
	if err != nil {
		return err
	}
	if is != nil && !strings.HasSuffix(is.Description, mark) {
		return foreign(object)
	}
	if is == nil {
		config, err := s.methodConfig(nil)
		if err != nil {
			return err
		}
		return s.settle(object, "is missing", "made", func() error {
			_, _, err := s.acl.AuthMethodCreate(&api.ACLAuthMethod{
				Name: s.method(), Type: "jwt", Description: mark, TokenLocality: localTokens, MaxTokenTTL: tokenTTL,
				Config: config,
			}, s.writing(ctx))
			return unreached(err)
		})
	}
	config, err := s.methodConfig(is.Config)
	if err != nil {
		return err
	}
	var differs []string
	for _, key := range slices.Sorted(maps.Keys(config)) {
		if !same(config[key], is.Config[key]) {
			differs = append(differs, key)
		}
	}
	if is.TokenLocality != localTokens {
		differs = append(differs, "TokenLocality")
	}
	if is.MaxTokenTTL != tokenTTL {
		differs = append(differs, "MaxTokenTTL")
	}
	fault := ""
	if len(differs) > 0 {
		fault = "differs in " + strings.Join(differs, ", ")
	}
	return s.settle(object, fault, "updated", func() error {
		is.TokenLocality, is.MaxTokenTTL = localTokens, tokenTTL
		maps.Copy(is.Config, config)
		_, _, err := s.acl.AuthMethodUpdate(is, s.writing(ctx))
		return unreached(err)
	})
}

// unreached adds advice to Consul's refusal of a JWKSURL, from which it fetches the keys at once.
func unreached(err error) error {
	var answer api.StatusError
	if errors.As(err, &answer) && strings.Contains(answer.Body, "error checking "+urlKey) {
		answer.Body += ": its servers must reach the URL (bind_addr), and -jwks-ca must have the CA of its certificate"
		return answer
	}
	return err
}

// methodConfig returns what an auth method's configuration must have. is is the present one: what an operator has
// added to it stays, and so do the keys of other hosts.
func (s *setup) methodConfig(is map[string]any) (map[string]any, error) {
	config := map[string]any{
		"JWTSupportedAlgs": []string{"ES256"},
		"BoundIssuer":      "pannier",
		"BoundAudiences":   []string{s.Audience},
		"ClaimMappings": map[string]string{
			"pannier_service": "pannier_service", "pannier_namespace": "pannier_namespace", "pannier_node": "pannier_node",
		},
	}
	standing := texts(is[keysKey])
	url, _ := is[urlKey].(string)
	switch {
	case s.JWKSURL != "" && len(standing) > 0:
		return nil, fmt.Errorf("the auth method %s has the keys of %d hosts, which a -jwks-url would replace: remove it by "+
			"-destroy first, or name another auth_method in the consul block", s.method(), len(standing))
	case s.JWKSURL != "" && url != "" && url != s.JWKSURL && !s.Force:
		return nil, fmt.Errorf("the auth method %s has the keys at %s, without which the services of other hosts cannot log in: "+
			"leave -jwks-url out if this host is of the same cluster, name another auth_method in the consul block, or replace "+
			"the URL with -force", s.method(), url)
	case s.JWKSURL != "":
		config[urlKey], config[caKey] = s.JWKSURL, s.JWKSCA
	case url != "": // as it is
	case len(s.Keys) == 0:
		return nil, fmt.Errorf("the agent's public keys are needed: start the agent, or give -jwks-url: %s", s.NoKeys)
	default:
		standing = slices.DeleteFunc(standing, func(k string) bool { return hasKey(s.Retired, k) })
		for _, key := range s.Keys {
			if !hasKey(standing, key) {
				standing = append(standing, key)
			}
		}
		config[keysKey] = standing
	}
	return config, nil
}

func hasKey(keys []string, key string) bool {
	return slices.ContainsFunc(keys, func(k string) bool { return strings.TrimSpace(k) == strings.TrimSpace(key) })
}

// texts returns a list of texts in Consul's answer.
func texts(v any) []string {
	var out []string
	list, _ := v.([]any)
	for _, e := range list {
		if text, ok := e.(string); ok {
			out = append(out, text)
		}
	}
	return out
}

// same compares two values by their JSON. Empty texts, which Consul leaves out, are the same as none.
func same(a, b any) bool {
	if a == "" && b == nil {
		return true
	}
	left, errLeft := json.Marshal(a)
	right, errRight := json.Marshal(b)
	return errLeft == nil && errRight == nil && bytes.Equal(left, right)
}

// pattern is a service's name with * for any text.
var pattern = regexp.MustCompile(`^[a-z0-9_*-]+$`)

// selector returns the condition of the binding rule of a namespace.
func selector(namespace string, patterns []string) (string, error) {
	text := fmt.Sprintf("value.pannier_namespace == %q", namespace)
	var names []string
	for _, p := range patterns {
		if !pattern.MatchString(p) {
			return "", fmt.Errorf("-services %s=%s: %q is no service's name: lower case letters, digits, - and _ are allowed, "+
				"and * for any text", namespace, strings.Join(patterns, ","), p)
		}
		names = append(names, strings.ReplaceAll(p, "*", ".*"))
	}
	if slices.Contains(patterns, "*") {
		return text, nil
	}
	return text + fmt.Sprintf(` and value.pannier_service matches "^(%s)$"`, strings.Join(names, "|")), nil
}

const bindName = "${value.pannier_service}"

// ruleOf describes the binding rule of a namespace, which has no name in Consul.
func ruleOf(namespace string) string { return "services of the namespace " + namespace + " " + mark }

// rules returns our binding rules, and those of others that the auth method has.
func (s *setup) rules(ctx context.Context) (ours, others []*api.ACLBindingRule, err error) {
	all, _, err := s.acl.BindingRuleList(s.method(), s.reading(ctx))
	if err != nil {
		return nil, nil, s.fail(err, "list the binding rules of the auth method %s", s.method())
	}
	for _, r := range consul.Present(all) {
		if strings.HasSuffix(r.Description, mark) {
			ours = append(ours, r)
		} else {
			others = append(others, r)
		}
	}
	return ours, others, nil
}

// bindingRules makes a rule for each namespace. Without -services the standing ones stay: another host may have made
// them, and nothing must become wider by chance.
func (s *setup) bindingRules(ctx context.Context) error {
	ours, others, err := s.rules(ctx)
	if err != nil {
		return err
	}
	for _, r := range others {
		s.step("binding rule "+r.ID, "was not made by this command: left", false)
	}
	wanted := s.Services
	if wanted == nil && len(ours) > 0 {
		for _, r := range ours {
			if err := s.rule(ctx, ruleObject(r), r, r.Selector); err != nil {
				return err
			}
		}
		return nil
	}
	if wanted == nil {
		wanted = map[string][]string{"default": {"*"}}
	}
	for _, namespace := range slices.Sorted(maps.Keys(wanted)) {
		condition, err := selector(namespace, wanted[namespace])
		if err != nil {
			return err
		}
		i := slices.IndexFunc(ours, func(r *api.ACLBindingRule) bool { return r.Description == ruleOf(namespace) })
		rule := &api.ACLBindingRule{AuthMethod: s.method(), Description: ruleOf(namespace)}
		if i >= 0 {
			rule = ours[i]
			ours = slices.Delete(ours, i, i+1)
		}
		if err := s.rule(ctx, ruleObject(rule), rule, condition); err != nil {
			return err
		}
	}
	for _, r := range ours {
		if err := s.settle(ruleObject(r), "is not wanted", "removed", func() error {
			_, err := s.acl.BindingRuleDelete(r.ID, s.writing(ctx))
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

func ruleObject(r *api.ACLBindingRule) string {
	return "binding rule: " + strings.TrimSuffix(r.Description, " "+mark)
}

// rule makes a rule, or mends one that has an id.
func (s *setup) rule(ctx context.Context, object string, r *api.ACLBindingRule, condition string) error {
	if r.ID == "" {
		return s.settle(object, "is missing", "made", func() error {
			r.BindType, r.BindName, r.Selector = api.BindingRuleBindTypeService, bindName, condition
			_, _, err := s.acl.BindingRuleCreate(r, s.writing(ctx))
			return err
		})
	}
	fault := ""
	switch {
	case r.Selector != condition:
		fault = "differs in its selector"
	case r.BindType != api.BindingRuleBindTypeService || r.BindName != bindName:
		fault = "differs in what it binds"
	}
	return s.settle(object, fault, "updated", func() error {
		r.BindType, r.BindName, r.Selector = api.BindingRuleBindTypeService, bindName, condition
		_, _, err := s.acl.BindingRuleUpdate(r, s.writing(ctx))
		return err
	})
}

// destroyMethod removes the auth method with its rules. Consul ends all tokens that it has given.
func (s *setup) destroyMethod(ctx context.Context) error {
	is, err := s.readMethod(ctx)
	if err != nil || is == nil {
		return err
	}
	object := "auth method " + s.method()
	if !strings.HasSuffix(is.Description, mark) {
		s.step(object, "was not made by this command: left", false)
		return nil
	}
	_, others, err := s.rules(ctx)
	if err != nil {
		return err
	}
	if len(others) > 0 {
		return fmt.Errorf("the %s has the binding rule %s, which was not made by this command and would go with it: "+
			"delete that first", object, others[0].ID)
	}
	return s.remove(object+", with its binding rules", func() error {
		_, err := s.acl.AuthMethodDelete(s.method(), s.writing(ctx))
		return err
	})
}
