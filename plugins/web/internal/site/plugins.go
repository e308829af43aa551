package site

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"

	"connectrpc.com/connect"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

type pluginData struct {
	*hostv1.Plugin
	// Node is empty for the one whose page it is.
	Node   string
	Events []event
}

// Past are the swaps, newest first.
func (d pluginData) Past() []*hostv1.PluginSwap {
	past := slices.Clone(d.GetSwaps())
	slices.Reverse(past)
	return past
}

func (s *Site) plugin(ctx context.Context, u user, r *http.Request) (any, error) {
	node, name := nodeOf(r), r.PathValue("name")
	of, err := s.host.pluginsOf(ctx, node)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(of.Plugins, func(p *hostv1.Plugin) bool { return p.GetName() == name })
	if at < 0 {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("%s has no plugin %q", cmp.Or(node, "this host"), name))
	}
	d := pluginData{Plugin: of.Plugins[at], Node: node}
	d.Events, _ = s.history(ctx, u, r, cmp.Or(node, of.Name), []string{"plugin"},
		func(e *hostv1.Event) bool { return e.GetSubject() == name })
	d.Events = d.Events[:min(len(d.Events), ownEvents)]
	return d, nil
}

func (s *Site) drivers(ctx context.Context, _ user, _ *http.Request) (any, error) {
	res, err := s.host.Drivers.ListDrivers(ctx, &hostv1.ListDriversRequest{})
	if err != nil {
		return nil, err
	}
	return res.GetDrivers(), nil
}

type driverData struct {
	*hostv1.Driver
	Events []event
}

func (s *Site) driver(ctx context.Context, u user, r *http.Request) (any, error) {
	id := r.PathValue("id")
	res, err := s.host.Drivers.GetDriver(ctx, &hostv1.GetDriverRequest{Id: id})
	if err != nil {
		return nil, err
	}
	d := driverData{Driver: res.GetDriver()}
	d.Events, _ = s.eventsOf(ctx, u, r, []string{"driver"}, func(e *hostv1.Event) bool { return e.GetSubject() == id })
	return d, nil
}

type servicesData struct {
	// Asked is the node that was asked; empty: the one whose page it is. Node is its name in both cases.
	Asked, Node string
	Choices     []string

	Services []serviceRow
	Tokens   []*hostv1.Token
	// TokensWhy explains why none are shown.
	TokensWhy string
}

// serviceRow is a service of a workload of the node.
type serviceRow struct {
	*hostv1.ServiceStatus
	Namespace, Workload string
}

func (s *Site) services(ctx context.Context, _ user, r *http.Request) (any, error) {
	d := servicesData{Asked: nodeOf(r)}
	list, err := s.host.Workloads.ListWorkloads(ctx, &hostv1.ListWorkloadsRequest{Namespace: "*", Node: d.Asked})
	if err != nil {
		return nil, err
	}
	d.Node = list.GetNode()
	d.Choices, _ = s.host.choices(ctx)
	for _, w := range list.GetWorkloads() {
		for _, service := range w.GetServices() {
			d.Services = append(d.Services, serviceRow{service, w.GetSpec().GetNamespace(), w.GetSpec().GetId()})
		}
	}
	slices.SortFunc(d.Services, func(a, b serviceRow) int { return cmp.Compare(a.GetName(), b.GetName()) })
	tokens, err := s.host.Tokens.ListTokens(ctx, &hostv1.ListTokensRequest{})
	if err != nil && connect.CodeOf(err) != connect.CodePermissionDenied {
		return nil, err
	}
	d.Tokens, d.TokensWhy = tokens.GetTokens(), reason(err)
	return d, nil
}
