package services

import (
	"encoding/json"
	"maps"
	"net"
	"reflect"
	"slices"
	"strings"

	"github.com/hashicorp/consul/api"
)

// drift names the part of the service that differs between v and want; empty: none. Tags of a service with
// EnableTagOverride are ignored.
func (v *view) drift(id string, want *api.AgentServiceRegistration) string {
	have := v.services[id]
	switch {
	case have == nil:
		return "missing"
	case have.Kind != want.Kind:
		return "kind"
	case have.Service != want.Name:
		return "name"
	case want.Port != 0 && have.Port != want.Port,
		want.Port == 0 && want.Kind != api.ServiceKindConnectProxy && have.Port != 0:
		return "port"
	case have.Address != want.Address:
		return "address"
	case have.EnableTagOverride != want.EnableTagOverride:
		return "enable_tag_override"
	case !want.EnableTagOverride && !slices.Equal(have.Tags, want.Tags):
		return "tags"
	case !maps.Equal(have.Meta, want.Meta):
		return "meta"
	case have.Weights != *want.Weights:
		return "weights"
	case (have.Connect != nil && have.Connect.Native) != (want.Connect != nil && want.Connect.Native):
		return "connect"
	case !sameAddresses(want, have):
		return "tagged_addresses"
	case want.Proxy != nil && !sameProxy(want, have.Proxy):
		return "proxy"
	}
	return v.checkDrift(id, want)
}

// aliasDrift is the drift of an alias that Consul has not evaluated. It is corrected, and not reported: nobody has
// changed anything.
const aliasDrift = "alias"

// checkDrift is drift for a service's checks. Checks that are not ours are ignored.
func (v *view) checkDrift(id string, want *api.AgentServiceRegistration) string {
	for _, c := range wantedChecks(id, want) {
		h := v.checks[id][c.CheckID]
		if h == nil || h.Name != c.Name || h.Notes != c.Notes {
			return "checks"
		}
		// If a registration follows another closely, the agent may take the state of an alias before it was evaluated for
		// the one that the catalog has, and leaves that there for a minute. At the agent itself it is about to be evaluated.
		if v.alive && want.Proxy != nil && c.Name == aliasCheckName(want.Proxy.DestinationServiceID) &&
			h.Status == api.HealthCritical && !v.fails("", want.Proxy.DestinationServiceID) {
			return aliasDrift
		}
	}
	if len(v.staleChecks(id, want)) > 0 {
		return "checks"
	}
	return ""
}

// fails reports whether a check of these services is critical; empty: of the node.
func (v *view) fails(services ...string) bool {
	for _, id := range services {
		for _, c := range v.checks[id] {
			if c.Status == api.HealthCritical {
				return true
			}
		}
	}
	return false
}

// wantedChecks returns the checks of a registration, including those that Consul gives to a sidecar without
// checks.
func wantedChecks(id string, want *api.AgentServiceRegistration) api.AgentServiceChecks {
	if want.Kind != api.ServiceKindConnectProxy || len(want.Checks) > 0 {
		return want.Checks
	}
	return api.AgentServiceChecks{
		{CheckID: checkPrefix(id) + ":1", Name: listeningCheck},
		{CheckID: checkPrefix(id) + ":2", Name: aliasCheckName(want.Proxy.DestinationServiceID)},
	}
}

// staleChecks returns checks that an earlier registration of ours has left.
func (v *view) staleChecks(id string, want *api.AgentServiceRegistration) (ids []string) {
	wanted := wantedChecks(id, want)
	for have := range v.checks[id] {
		if strings.HasPrefix(have, checkPrefix(id)) &&
			!slices.ContainsFunc(wanted, func(c *api.AgentServiceCheck) bool { return c.CheckID == have }) {
			ids = append(ids, have)
		}
	}
	return ids
}

// sameAddresses allows for Consul adding the address under the tags of its family, and tags of its own.
func sameAddresses(want *api.AgentServiceRegistration, have *api.AgentService) bool {
	all := maps.Clone(want.TaggedAddresses)
	if all == nil {
		all = map[string]api.ServiceAddress{}
	}
	if ip := net.ParseIP(want.Address); ip != nil {
		family := "_ipv6"
		if ip.To4() != nil {
			family = "_ipv4"
		}
		for _, tag := range []string{"lan" + family, "wan" + family} {
			if _, own := all[tag]; !own {
				all[tag] = api.ServiceAddress{Address: want.Address, Port: have.Port}
			}
		}
	}
	for tag, address := range have.TaggedAddresses {
		if wanted, ok := all[tag]; ok && wanted != address || !ok && !strings.HasPrefix(tag, "consul-") {
			return false
		}
		delete(all, tag)
	}
	return len(all) == 0
}

// sameProxy compares the fields of a proxy that the workload sets. Consul's central configuration (proxy-defaults,
// service-defaults) may set the others.
func sameProxy(want *api.AgentServiceRegistration, have *api.AgentServiceConnectProxyConfig) bool {
	w := want.Proxy
	if have == nil || !covers(w.Config, have.Config) {
		return false
	}
	if want.Kind != api.ServiceKindConnectProxy {
		return true
	}
	return have.DestinationServiceName == w.DestinationServiceName &&
		have.DestinationServiceID == w.DestinationServiceID &&
		have.LocalServiceAddress == w.LocalServiceAddress &&
		have.LocalServicePort == w.LocalServicePort &&
		(w.MeshGateway.Mode == "" || have.MeshGateway.Mode == w.MeshGateway.Mode) &&
		(!w.Expose.Checks || have.Expose.Checks) &&
		(len(w.Expose.Paths) == 0 || slices.EqualFunc(w.Expose.Paths, have.Expose.Paths, samePath)) &&
		slices.EqualFunc(w.Upstreams, ownUpstreams(have.Upstreams), sameUpstream)
}

func samePath(want, have api.ExposePath) bool {
	return want.Path == have.Path && want.ListenerPort == have.ListenerPort && want.LocalPathPort == have.LocalPathPort &&
		(want.Protocol == "" || want.Protocol == have.Protocol)
}

// ownUpstreams removes the upstreams of the central configuration, which have no local bind address.
func ownUpstreams(all []api.Upstream) []api.Upstream {
	return slices.DeleteFunc(slices.Clone(all), func(u api.Upstream) bool {
		return u.LocalBindPort == 0 && u.LocalBindSocketPath == ""
	})
}

func sameUpstream(want, have api.Upstream) bool {
	unset := func(want, have string) bool { return want == "" || want == have }
	return want.DestinationType == have.DestinationType &&
		want.DestinationName == have.DestinationName &&
		unset(want.DestinationNamespace, have.DestinationNamespace) &&
		unset(want.DestinationPartition, have.DestinationPartition) &&
		want.DestinationPeer == have.DestinationPeer &&
		want.Datacenter == have.Datacenter &&
		want.LocalBindAddress == have.LocalBindAddress &&
		want.LocalBindPort == have.LocalBindPort &&
		want.LocalBindSocketPath == have.LocalBindSocketPath &&
		unset(want.LocalBindSocketMode, have.LocalBindSocketMode) &&
		unset(string(want.MeshGateway.Mode), string(have.MeshGateway.Mode)) &&
		covers(want.Config, have.Config)
}

// covers reports whether have contains all of an opaque configuration. Both are compared as JSON, so that all number
// types are equal.
func covers(want, have map[string]any) bool {
	if len(want) == 0 {
		return true
	}
	text, err := json.Marshal(want)
	if err != nil {
		return false // it could not have been registered
	}
	var plain any
	return json.Unmarshal(text, &plain) == nil && within(plain, have)
}

// within reports whether have contains want's value; maps may have more keys. Consul's merge treats an empty value as
// absent, so the value may then be anything.
func within(want, have any) bool {
	if empty(want) {
		return true
	}
	keys, ok := want.(map[string]any)
	if !ok {
		return reflect.DeepEqual(want, have)
	}
	got, ok := have.(map[string]any)
	if !ok {
		return false
	}
	for key, value := range keys {
		if !within(value, got[key]) {
			return false
		}
	}
	return true
}

func empty(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return reflect.ValueOf(v).IsZero()
}
