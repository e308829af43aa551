package config

import (
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/service"
)

var validEnv = regexp.MustCompile(`^[^=\x00]+$`)

// exec reads the workload's program. Its arguments and its environment keep their
// variables; what is run is no variable.
func (s *section) exec(variables *later) *hostv1.Exec {
	block := s.one("exec")
	if block == nil {
		return nil
	}
	in := s.inner(block, fields{attrs: []string{"command", "args", "user"}, blocks: []string{"env"}})
	e := &hostv1.Exec{}
	in.str("command", &e.Command)
	if strings.TrimSpace(e.Command) == "" {
		in.fail("command", "is required")
	}
	in.str("user", &e.User)
	in.later = variables
	in.strings("args", &e.Args)
	e.Env = in.env()
	return e
}

func (s *section) env() map[string]string {
	env := s.free("env", false)
	for name := range env {
		if !validEnv.MatchString(name) {
			s.fail("env", "%q cannot be the name of a variable", name)
		}
	}
	return env
}

// sidecars reads the programs beside the workload's own: each is the proxy of one of
// the services.
func (s *section) sidecars(variables *later, services []service.Service) []*hostv1.Sidecar {
	var proxied []string
	for _, one := range services {
		if one.Proxied() {
			proxied = append(proxied, one.Name)
		}
	}
	taken := map[string]bool{}
	return list(s.content.Blocks.OfType("sidecar"), func(_ int, block *hcl.Block) *hostv1.Sidecar {
		in := s.inner(block, fields{attrs: []string{"service", "command", "user"}, blocks: []string{"env"}})
		c := &hostv1.Sidecar{}
		in.str("service", &c.Service)
		in.str("user", &c.User)
		in.proxyOf(c.Service, proxied, taken)
		in.later = variables
		in.strings("command", &c.Command)
		if len(c.Command) == 0 || strings.TrimSpace(c.Command[0]) == "" {
			in.fail("command", `is required: a list of the program and its arguments, such as ["envoy", "-c", "${bootstrap}"]`)
		}
		c.Env = in.env()
		return c
	})
}

// proxyOf checks which service a sidecar is the proxy of; proxied are those that have
// one.
func (s *section) proxyOf(name string, proxied []string, taken map[string]bool) {
	switch {
	case len(proxied) == 0:
		s.fail("service", "no service of the workload has a proxy; write a connect block with sidecar_service or gateway")
		return
	case name == "" && len(proxied) > 1:
		s.fail("service", "is required, since several services have a proxy: %s", strings.Join(proxied, ", "))
		return
	case name == "":
		name = proxied[0]
	case !slices.Contains(proxied, name):
		s.fail("service", "%q is no service with a proxy; these are: %s", name, strings.Join(proxied, ", "))
		return
	}
	if taken[name] {
		s.fail("service", "%q has a sidecar already", name)
	}
	taken[name] = true
}
