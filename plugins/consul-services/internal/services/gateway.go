package services

import (
	"context"
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
			CipherSuites: in.TLS.CipherSuites,
		}
	}
	for _, l := range in.Listeners {
		listener := api.IngressListener{Port: int(l.Port), Protocol: l.Protocol}
		if listener.Protocol == "" {
			listener.Protocol = "tcp"
		}
		for _, s := range l.Services {
			listener.Services = append(listener.Services, api.IngressService{Name: s.Name, Hosts: s.Hosts})
		}
		entry.Listeners = append(entry.Listeners, listener)
	}
	return entry
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
		return ok && reflect.DeepEqual(plainIngress(want), plainIngress(have))
	case *api.TerminatingGatewayConfigEntry:
		have, ok := have.(*api.TerminatingGatewayConfigEntry)
		return ok && reflect.DeepEqual(plainTerminating(want), plainTerminating(have))
	}
	return false
}

func plainIngress(e *api.IngressGatewayConfigEntry) service.Ingress {
	out := service.Ingress{TLS: &service.IngressTLS{
		Enabled: e.TLS.Enabled, TLSMinVersion: e.TLS.TLSMinVersion, TLSMaxVersion: e.TLS.TLSMaxVersion,
		CipherSuites: append([]string(nil), e.TLS.CipherSuites...),
	}}
	for _, l := range e.Listeners {
		listener := service.IngressListener{Port: int32(l.Port), Protocol: l.Protocol}
		for _, s := range l.Services {
			listener.Services = append(listener.Services,
				service.IngressService{Name: s.Name, Hosts: append([]string(nil), s.Hosts...)})
		}
		out.Listeners = append(out.Listeners, listener)
	}
	return out
}

func plainTerminating(e *api.TerminatingGatewayConfigEntry) service.Terminating {
	var out service.Terminating
	for _, s := range e.Services {
		out.Services = append(out.Services,
			service.LinkedService{Name: s.Name, CAFile: s.CAFile, CertFile: s.CertFile, KeyFile: s.KeyFile, SNI: s.SNI})
	}
	return out
}
