package config

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/pannier/pannier/host/internal/system/vars"
	servicev1 "github.com/pannier/pannier/sdk/proto/pannier/service/v1"
	"github.com/pannier/pannier/sdk/service"
)

// workloadReader reads one workload.
type workloadReader struct {
	// places maps the pointers of service.Problem to sections.
	places map[string]*section
	labels []string // of the workload's ports, and those that services need besides
}

// services reads the service and identity blocks.
func (r *workloadReader) services(s *section) []service.Service {
	variables := newLater(vars.InServices(r.labels))
	services := list(s.content.Blocks.OfType("service"), func(i int, block *hcl.Block) service.Service {
		in := s.inner(block, fieldsOf(reflect.TypeFor[service.Service]()))
		in.later = variables
		return r.service(in, fmt.Sprint("/services/", i), block.Labels[0])
	})
	for _, block := range s.content.Blocks.OfType("identity") {
		in := s.inner(block, fields{attrs: []string{"issuer"}})
		r.places[fmt.Sprint("/services/", len(services))] = in
		identity := service.Service{Name: block.Labels[0], Consul: block.Labels[0], IdentityOnly: true}
		in.id("issuer", identity.Consul)
		in.str("issuer", &identity.Consul)
		services = append(services, identity)
	}
	return services
}

// tell reports a problem at the place of its field.
func (r *workloadReader) tell(p *service.Problem) {
	place, rest := p.Pointer, ""
	for r.places[place] == nil {
		at := strings.LastIndex(place, "/")
		place, rest = place[:at], place[at:]+rest
	}
	in := r.places[place]
	keys := strings.Split(strings.TrimPrefix(rest, "/"), "/")
	switch text := strings.Join(append(keys[1:], p.Text), ": "); {
	case rest == "":
		in.problems.add(in.missing, "%s: %s", in.path, p.Text)
	case in.failed[keys[0]]: // already reported when it was read
	default:
		in.problems.add(in.at(keys[0]), "%s: %s", in.key(keys[0]), text)
	}
}

func (r *workloadReader) service(in *section, at, label string) (s service.Service) {
	name := in.named(label)
	r.read(in, at, reflect.ValueOf(&s).Elem())
	s.Name = name
	checkProvider(in)
	checkAddressMode(in)
	readCluster(in, &s.Consul)
	checkKind(in, s.Connect)
	checkOnUpdate(in)
	r.gatewayPort(&s)
	return s
}

// gatewayPort gives a terminating gateway without a port the one with its name as label, which is a free one of the
// node if the network block has none of that label.
func (r *workloadReader) gatewayPort(s *service.Service) {
	needs := s.Port == "" && s.Connect != nil && s.Connect.Gateway != nil && s.Connect.Gateway.Terminating != nil
	if !needs || service.CheckLabel(s.Name) != nil {
		return
	}
	s.Port = s.Name
	if !slices.Contains(r.labels, s.Name) {
		r.labels = append(r.labels, s.Name)
	}
}

// named returns the name of a block, from its label or its argument name, and adds it to the section's path.
func (s *section) named(label string) string {
	name := label
	given := s.plain().str("name", &name)
	switch {
	case label == "" && name != "":
		s.path += fmt.Sprintf(" %q", name)
	case given && name != label:
		s.fail("name", "%q is not the block's label; leave one of them out", name)
		return label
	}
	return name
}

// title reads the field that identifies the block to people.
func (s *section) title(name string, dst *string) {
	if s.str(name, dst) && *dst != "" {
		s.path += fmt.Sprintf(" %q", *dst)
	}
}

// checkProvider is Nomad's key for the service registry.
func checkProvider(s *section) {
	var provider string
	if s.plain().str("provider", &provider) && provider != "consul" {
		s.fail("provider", `%q is not supported: services are kept by Consul; leave it out, or write provider = "consul"`,
			provider)
	}
}

// checkAddressMode is Nomad's key. Here workloads only have their node's addresses.
func checkAddressMode(s *section) {
	var mode string
	if s.plain().str("address_mode", &mode) && mode != "auto" && mode != "host" {
		s.fail("address_mode", "%q is not supported: a workload has its node's network; leave it out, or write an address",
			mode)
	}
}

// checkKind is Nomad's key for what the blocks in connect say here.
func checkKind(s *section, connect *service.Connect) {
	var kind, is string
	if !s.plain().str("kind", &kind) || kind == "" {
		return
	}
	if connect != nil && connect.Gateway != nil {
		switch g := connect.Gateway; {
		case g.API != nil:
			is = "api-gateway"
		case g.Ingress != nil:
			is = "ingress-gateway"
		case g.Mesh != nil:
			is = "mesh-gateway"
		case g.Terminating != nil:
			is = "terminating-gateway"
		}
	}
	of, known := strings.CutSuffix(kind, "-gateway")
	switch {
	case kind == is:
	case known && slices.Contains([]string{"api", "ingress", "mesh", "terminating"}, of):
		s.fail("kind", "%q is the kind of a service with connect { gateway { %s {} } }", kind, of)
	default:
		s.fail("kind", "%q is not supported; leave it out: what a service is follows from connect", kind)
	}
}

// checkOnUpdate is Nomad's key for what a deployment makes of the checks. Here is none, and no start waits for checks.
func checkOnUpdate(s *section) {
	var mode string
	s.plain().oneOf("on_update", []string{"require_healthy", "ignore_warnings", "ignore"}, &mode)
}

// readCluster reads Nomad's key for the agent's consul block.
func readCluster(s *section, consul *string) {
	if s.has("cluster") && s.has("consul") {
		s.fail("cluster", "is another word for consul, which is given too; leave one of them out")
		return
	}
	s.plain().str("cluster", consul)
}

// numberOrLabel reads a port.
func (s *section) numberOrLabel(name string, dst *string) {
	plain := s.plain()
	v, ok := plain.value(name)
	if !ok {
		return
	}
	if v.Type() != cty.String && v.Type() != cty.Number {
		s.fail(name, "a number or a port's label is required, not %s", kindOf(v))
		return
	}
	*dst, _ = asText(v)
}

// small reads a number. Its bounds are checked with the service.
func (s *section) small(name string, dst *int32) {
	n := int64(*dst)
	s.integer(name, -1<<31, 1<<31-1, &n)
	*dst = int32(n)
}

// smallOrLabel reads a number, or a port's label.
func (s *section) smallOrLabel(name string, number *int32, label *string) {
	var text string
	s.numberOrLabel(name, &text)
	if n, err := strconv.ParseInt(text, 10, 32); err == nil {
		*number = int32(n)
		return
	}
	*label = text
}

// headerValues reads names with lists of values.
func headerValues(s *section) map[string]service.HeaderValues {
	object := s.object("header")
	if object == nil {
		return nil
	}
	out := map[string]service.HeaderValues{}
	for name, value := range object {
		elements, isList := value.([]any)
		var values []string
		for _, v := range elements {
			text, isText := v.(string)
			isList = isList && isText
			values = append(values, text)
		}
		if !isList {
			s.fail("header", `%s: a list of strings is required, such as ["text/plain"]`, name)
			continue
		}
		out[name] = service.HeaderValues{Values: values}
	}
	return out
}

// messages converts the services to protobuf. Their values are JSON, so it cannot fail unless the model is wrong.
func messages(s *section, services []service.Service) []*servicev1.Service {
	var out []*servicev1.Service
	for _, one := range services {
		m, err := one.ToProto()
		if err != nil {
			s.fail("service", "%v", err)
			continue
		}
		out = append(out, m)
	}
	return out
}

// list reads the blocks of a type with a function.
func list[T any](blocks hcl.Blocks, read func(i int, block *hcl.Block) T) []T {
	var out []T
	for i, block := range blocks {
		out = append(out, read(i, block))
	}
	return out
}
