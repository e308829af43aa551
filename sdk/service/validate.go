package service

import (
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Problem is one fault of a service.
type Problem struct {
	// Pointer is the JSON pointer (RFC 6901) of the field in the list of services, such as "/0/checks/0/interval".
	Pointer string
	// Path names the field for people, such as `service "web": check "alive": interval`.
	Path string
	// Text describes the problem.
	Text string
}

func (p *Problem) Error() string { return p.Path + ": " + p.Text }

// Validate checks everything about the services of one workload that can be checked without Consul, and returns
// every fault. ports are the labels of the workload's ports. Variables (${…}) are allowed in descriptive texts and
// opaque values, not in names, numbers, types and durations.
func Validate(services []Service, ports map[string]bool) []*Problem {
	v := &validator{ports: ports}
	names := map[string]bool{}
	for i := range services {
		s := &services[i]
		at := field{fmt.Sprint("/", i), fmt.Sprintf("service %q", s.Name)}
		if names[s.Name] { // the name is part of the id in Consul
			v.fail(at.in("name"), "another service of the workload has it too; each needs a name of its own")
		}
		names[s.Name] = true
		v.service(at, s)
	}
	return v.problems
}

func (v *validator) service(at field, s *Service) {
	v.serviceName(at.in("name"), s.Name, s.Identified())
	if s.IdentityOnly {
		if only := (Service{Name: s.Name, Consul: s.Consul, IdentityOnly: true}); !reflect.DeepEqual(*s, only) {
			v.fail(at, "is an identity only: it has a name, an issuer and nothing else")
		}
		return
	}
	v.port(at.in("port"), s.Port)
	v.address(at.in("address"), s.Address)
	v.meta(at.in("meta"), s.Meta)
	v.meta(at.in("canary_meta"), s.CanaryMeta)
	for _, name := range sorted(s.TaggedAddresses) {
		if at := at.in("tagged_addresses").in(name); s.TaggedAddresses[name] == "" {
			v.fail(at, "is empty")
		} else {
			v.address(at, s.TaggedAddresses[name])
		}
	}
	if w := s.Weights; w != nil {
		v.between(at.in("weights").in("passing"), w.Passing, 1, maxPort)
		v.between(at.in("weights").in("warning"), w.Warning, 0, maxPort)
	}
	for i := range s.Checks {
		v.check(at.element("checks", i, quoted("check", s.Checks[i].Name, i)), s, &s.Checks[i])
	}
	if s.Connect != nil {
		v.connect(at.in("connect"), s)
	}
	v.intentions(at.in("intentions"), s)
}

// maxIntentions keeps what many hosts ask for together within an entry of Consul.
const maxIntentions = 64

func (v *validator) intentions(at field, s *Service) {
	switch {
	case s.Intentions == nil:
		return
	case len(s.Intentions) == 0:
		v.fail(at, "at least one service is required; leave it out to say nothing about callers")
	case len(s.Intentions) > maxIntentions:
		v.fail(at, "has %d services, %d are allowed", len(s.Intentions), maxIntentions)
	case s.Connect == nil || s.Connect.Gateway != nil:
		v.fail(at, "are of a service in the mesh, with connect { sidecar_service {} } or native")
	}
	seen := map[string]bool{}
	for _, name := range s.Intentions {
		if name != AnyService {
			v.serviceName(at, name, true)
		}
		if seen[name] {
			v.fail(at, "%q is there twice", name)
		}
		seen[name] = true
	}
}

// These limits are Consul's (agent/structs).
const (
	maxPort      = 65535
	maxMeta      = 64
	maxMetaKey   = 128
	maxMetaValue = 512
	reservedMeta = "consul-"
)

var (
	nameForm = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$`)
	})
	metaKeyForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9_-]+$`) })
	labelForm   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_-]{0,62}$`) })
)

// CheckLabel returns an error if a port's label is invalid. A label must not be a number, and is used in the
// variable ${port.LABEL}.
func CheckLabel(label string) error {
	if !labelForm().MatchString(label) {
		return fmt.Errorf("%q is no label: up to 63 letters, digits, - and _, beginning with a letter or _", label)
	}
	return nil
}

// field is the location of a field in a service.
type field struct{ pointer, path string }

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

func (f field) in(name string) field {
	return field{f.pointer + "/" + pointerEscapes.Replace(name), f.path + ": " + name}
}

// element is one element of a list, identified by its name.
func (f field) element(list string, i int, name string) field {
	return field{fmt.Sprintf("%s/%s/%d", f.pointer, list, i), f.path + ": " + name}
}

// quoted names an element of a list, by its number if it has no name.
func quoted(kind, name string, i int) string {
	if name == "" {
		return fmt.Sprintf("%s %d", kind, i+1)
	}
	return fmt.Sprintf("%s %q", kind, name)
}

type validator struct {
	ports    map[string]bool
	problems []*Problem
}

func (v *validator) fail(at field, format string, args ...any) {
	v.problems = append(v.problems, &Problem{Pointer: at.pointer, Path: at.path, Text: fmt.Sprintf(format, args...)})
}

// serviceName follows RFC 1123, section 2.1, so that DNS can find the service. Names in the ACL system (service
// identities) are lower case.
func (v *validator) serviceName(at field, name string, meshed bool) {
	switch {
	case name == "":
		v.fail(at, "is required")
	case !nameForm().MatchString(name):
		v.fail(at, "%q must be 1 to 63 letters, digits and hyphens, without a hyphen at an end", name)
	case meshed && strings.ToLower(name) != name:
		v.fail(at, "%q must be in small letters: Consul has no service identity for another", name)
	}
}

// port accepts a number, a label, or nothing.
func (v *validator) port(at field, port string) {
	if port == "" {
		return
	}
	if n, err := strconv.Atoi(port); err == nil {
		if n < 1 || n > maxPort {
			v.fail(at, "a number from 1 to %d is required, not %s", maxPort, port)
		}
		return
	}
	switch err := CheckLabel(port); {
	case err != nil:
		v.fail(at, "%q is neither a number nor a label of a port", port)
	case !v.ports[port]:
		v.fail(at, "the workload has no port %q; it has %s", port, listed(v.ports))
	}
}

func listed(ports map[string]bool) string {
	if len(ports) == 0 {
		return "none"
	}
	return strings.Join(sorted(ports), ", ")
}

// address accepts any name or IP address except those that mean all addresses.
func (v *validator) address(at field, address string) {
	if ip, err := netip.ParseAddr(address); err == nil && ip.IsUnspecified() {
		v.fail(at, "%q is no address that others can reach", address)
	}
}

func (v *validator) meta(at field, meta map[string]string) {
	if len(meta) > maxMeta {
		v.fail(at, "has %d keys, %d are allowed", len(meta), maxMeta)
	}
	for _, key := range sorted(meta) {
		at := at.in(key)
		switch {
		case !metaKeyForm().MatchString(key):
			v.fail(at, "a key may have letters, digits, - and _ only")
		case len(key) > maxMetaKey:
			v.fail(at, "the key has %d characters, %d are allowed", len(key), maxMetaKey)
		case strings.HasPrefix(key, reservedMeta):
			v.fail(at, "keys that begin with %s are Consul's own", reservedMeta)
		}
		if n := len(meta[key]); n > maxMetaValue {
			v.fail(at, "has %d bytes, %d are allowed", n, maxMetaValue)
		}
	}
}

func (v *validator) between(at field, n, lowest, highest int32) {
	if n < lowest || n > highest {
		v.fail(at, "a number from %d to %d is required, not %d", lowest, highest, n)
	}
}

// duration accepts a Go duration of at least shortest.
func (v *validator) duration(at field, text string, shortest time.Duration) {
	if d, err := time.ParseDuration(text); err != nil || d < shortest {
		v.fail(at, "a duration of %s or more such as \"10s\" is required, not %q", shortest, text)
	}
}

// oneOf accepts one of the allowed texts, or nothing.
func (v *validator) oneOf(at field, text string, allowed ...string) {
	if text != "" && !slices.Contains(allowed, text) {
		v.fail(at, "%q is not one of %s", text, strings.Join(allowed, ", "))
	}
}

// absolute accepts a path that begins with / or a variable.
func (v *validator) absolute(at field, path string) {
	switch {
	case path == "":
		v.fail(at, "is required")
	case !strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "${"):
		v.fail(at, "%q does not begin with /", path)
	}
}

func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
