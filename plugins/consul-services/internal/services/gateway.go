package services

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"reflect"

	"github.com/hashicorp/consul/api"

	"github.com/pannier/pannier/plugins/internal/consul"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
)

// configure writes the config entry of an ingress or terminating gateway if Consul's entry differs. The entry is
// never deleted, because the gateway's instances on other hosts need it.
func (a *agent) configure(ctx context.Context, i registration.Instance) error {
	entry := configEntry(&i.Service)
	if entry == nil {
		return nil
	}
	entries := a.ConfigEntries()
	have, _, err := entries.Get(entry.GetKind(), entry.GetName(), query(ctx))
	switch {
	case consul.Answered(err, http.StatusNotFound):
	case err != nil:
		return a.error(err, "read the config entry %s %q", entry.GetKind(), entry.GetName())
	case sameEntry(entry, have):
		return nil
	}
	_, _, err = entries.Set(entry, write(ctx))
	return a.error(err, "write the config entry %s %q", entry.GetKind(), entry.GetName())
}

// configEntry returns the config entry of a gateway; nil if it needs none.
func configEntry(s *service.Service) api.ConfigEntry {
	if s.Connect == nil || s.Connect.Gateway == nil {
		return nil
	}
	switch g := s.Connect.Gateway; {
	case g.Ingress != nil:
		return ingress(s.Name, g.Ingress)
	case g.Terminating != nil:
		return terminating(s.Name, g.Terminating)
	}
	return nil
}

func ingress(name string, in *service.Ingress) *api.IngressGatewayConfigEntry {
	entry := &api.IngressGatewayConfigEntry{Kind: api.IngressGateway, Name: name}
	if in.TLS != nil {
		entry.TLS = api.GatewayTLSConfig{
			Enabled: in.TLS.Enabled, TLSMinVersion: in.TLS.TLSMinVersion, TLSMaxVersion: in.TLS.TLSMaxVersion,
			CipherSuites: in.TLS.CipherSuites, SDS: sds(in.TLS.SDS),
		}
	}
	for _, l := range in.Listeners {
		listener := api.IngressListener{Port: int(l.Port), Protocol: l.Protocol}
		if listener.Protocol == "" {
			listener.Protocol = "tcp"
		}
		for _, s := range l.Services {
			listener.Services = append(listener.Services, behind(&s))
		}
		entry.Listeners = append(entry.Listeners, listener)
	}
	return entry
}

// behind is a service behind a listener.
func behind(s *service.IngressService) api.IngressService {
	out := api.IngressService{
		Name: s.Name, Hosts: s.Hosts,
		RequestHeaders: modifiers(s.RequestHeaders), ResponseHeaders: modifiers(s.ResponseHeaders),
		MaxConnections: bound(s.MaxConnections), MaxPendingRequests: bound(s.MaxPendingRequests),
		MaxConcurrentRequests: bound(s.MaxConcurrentRequests),
	}
	if s.TLS != nil {
		out.TLS = &api.GatewayServiceTLSConfig{SDS: sds(s.TLS.SDS)}
	}
	return out
}

func sds(s *service.SDS) *api.GatewayTLSSDSConfig {
	if s == nil {
		return nil
	}
	return &api.GatewayTLSSDSConfig{ClusterName: s.ClusterName, CertResource: s.CertResource}
}

func modifiers(m *service.HeaderModifiers) *api.HTTPHeaderModifiers {
	if m == nil {
		return nil
	}
	return &api.HTTPHeaderModifiers{Add: m.Add, Set: m.Set, Remove: m.Remove}
}

// bound is a limit as Consul has it, where nil is Envoy's default.
func bound(n int32) *uint32 {
	if n == 0 {
		return nil
	}
	limit := uint32(n)
	return &limit
}

func terminating(name string, in *service.Terminating) *api.TerminatingGatewayConfigEntry {
	entry := &api.TerminatingGatewayConfigEntry{Kind: api.TerminatingGateway, Name: name}
	for _, s := range in.Services {
		entry.Services = append(entry.Services, api.LinkedService{
			Name: s.Name, CAFile: s.CAFile, CertFile: s.CertFile, KeyFile: s.KeyFile, SNI: s.SNI,
		})
	}
	return entry
}

// sameEntry compares the fields of a gateway's entry that a workload can set. Fields that Consul adds, such as
// indexes and tenancy, are ignored.
func sameEntry(want, have api.ConfigEntry) bool {
	switch want := want.(type) {
	case *api.IngressGatewayConfigEntry:
		have, ok := have.(*api.IngressGatewayConfigEntry)
		return ok && sameJSON(plainIngress(want), plainIngress(have))
	case *api.TerminatingGatewayConfigEntry:
		have, ok := have.(*api.TerminatingGatewayConfigEntry)
		return ok && reflect.DeepEqual(plainTerminating(want), plainTerminating(have))
	}
	return false
}

// plainIngress has what a workload can set, with empty lists in one form.
func plainIngress(e *api.IngressGatewayConfigEntry) any {
	out := api.IngressGatewayConfigEntry{TLS: e.TLS}
	for _, l := range e.Listeners {
		listener := api.IngressListener{Port: l.Port, Protocol: l.Protocol}
		for _, s := range l.Services {
			s.Namespace, s.Partition, s.PassiveHealthCheck = "", "", nil
			s.Hosts = append([]string{}, s.Hosts...)
			listener.Services = append(listener.Services, s)
		}
		out.Listeners = append(out.Listeners, listener)
	}
	return out
}

// sameJSON compares what Consul is sent with what it answered.
func sameJSON(want, have any) bool {
	w, errW := json.Marshal(want)
	h, errH := json.Marshal(have)
	return errW == nil && errH == nil && bytes.Equal(w, h)
}

func plainTerminating(e *api.TerminatingGatewayConfigEntry) service.Terminating {
	var out service.Terminating
	for _, s := range e.Services {
		out.Services = append(out.Services,
			service.LinkedService{Name: s.Name, CAFile: s.CAFile, CertFile: s.CertFile, KeyFile: s.KeyFile, SNI: s.SNI})
	}
	return out
}
