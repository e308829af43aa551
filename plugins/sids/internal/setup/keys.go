package setup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/pannier/pannier/plugins/sids/internal/tokens"
)

// reachesKeys makes Consul fetch the keys from the auth method's URL: a login with a JWT of a key that nobody has must
// fail by its signature. Consul's leader fetches them.
func (s *setup) reachesKeys(ctx context.Context) error {
	is, err := s.readMethod(ctx)
	if err != nil {
		return err
	}
	if is == nil {
		return nil // a dry run, or a check that has said so
	}
	url, _ := is.Config[urlKey].(string)
	if url == "" {
		return nil
	}
	object := "keys at " + url
	bearer, err := tokens.UnknownJWT()
	if err != nil {
		return err
	}
	anonymous, err := s.pool.Client(s.Consul, "")
	if err != nil {
		return err
	}
	_, _, err = anonymous.ACL().Login(&api.ACLLoginParams{AuthMethod: s.method(), BearerToken: bearer}, s.writing(ctx))
	var answer api.StatusError
	switch {
	case err == nil:
		return fmt.Errorf("%s: Consul accepted a JWT that nobody has signed: look at the auth method %s", object, s.method())
	case !errors.As(err, &answer):
		return s.fail(err, "log in to try the %s", object)
	case strings.Contains(answer.Body, "fetching keys"):
		s.step(object, "cannot be fetched by Consul: "+strings.Join(strings.Fields(answer.Body), " "), true)
	case strings.Contains(answer.Body, "error verifying token"):
		s.step(object, "are fetched by Consul", false)
	default:
		return s.fail(err, "log in to try the %s", object)
	}
	return nil
}

// missingConfig returns what the agent's configuration lacks, in HCL.
func (s *setup) missingConfig() string {
	var lines strings.Builder
	if !s.Configured {
		line(&lines, "address", s.Consul.Address)
		line(&lines, "ca_file", s.Consul.CAFile)
		line(&lines, "cert_file", s.Consul.CertFile)
		line(&lines, "key_file", s.Consul.KeyFile)
		line(&lines, "tls_server_name", s.Consul.TLSServerName)
	}
	if s.Consul.TokenFile == "" {
		line(&lines, "token_file", s.NodeTokenFile)
	}
	if s.Consul.AuthMethod == "" && !s.Minted {
		line(&lines, "auth_method", s.method())
	}
	var out string
	if lines.Len() > 0 {
		out = fmt.Sprintf("consul%s {\n%s}\n", label(s.Consul.Name), lines.String())
	}
	if s.Minted && !s.sidsConfigured {
		out += fmt.Sprintf("plugin \"sids\" {\n  config {\n%s  }\n}\n", s.sidsLines())
	}
	return out
}

// sidsLines is the plugin's configuration for this Consul.
func (s *setup) sidsLines() string {
	text := fmt.Sprintf("token_file = %q\n", s.SidsTokenFile)
	if name := label(s.Consul.Name); name != "" {
		return fmt.Sprintf("    consul%s {\n      %s    }\n", name, text)
	}
	return "    " + text
}

// label is the label of a consul block; the default one has none.
func label(name string) string {
	if cmp.Or(name, "default") == "default" {
		return ""
	}
	return fmt.Sprintf(" %q", name)
}

func line(to *strings.Builder, key, value string) {
	if value != "" {
		fmt.Fprintf(to, "  %-15s = %q\n", key, value)
	}
}
