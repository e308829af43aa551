package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// showService tells how a service of a workload stands; what it has not is left out.
func (a *app) showService(s *hostv1.ServiceStatus) error {
	if err := a.heading(printable(fmt.Sprintf("Service %s", s.GetName()))); err != nil {
		return err
	}
	t := newTable()
	some := func(name string, value any) {
		if text := fmt.Sprint(value); text != "" && text != "0" {
			t.row(name, text)
		}
	}
	t.row("ID", s.GetId())
	some("Proxy", s.GetProxyId())
	t.row("Consul", s.GetConsul())
	some("Port", s.GetPort())
	some("Token", s.GetTokenAccessor())
	some("Token expires", ahead(s.GetTokenExpiresAt()))
	some("Token file", s.GetTokenFile())
	some("Bootstrap file", s.GetBootstrapFile())
	some("Admin port", s.GetAdminPort())
	some("Ready port", s.GetReadyPort())
	if s.GetMessage() != "" {
		t.row("Message", cell{s.GetMessage(), yellow})
	}
	return a.show(t)
}

// joinPorts writes ports as label=number, sorted.
func joinPorts(ports map[string]int32) string {
	var list []string
	for _, label := range slices.Sorted(maps.Keys(ports)) {
		list = append(list, fmt.Sprintf("%s=%d", label, ports[label]))
	}
	return strings.Join(list, " ")
}
