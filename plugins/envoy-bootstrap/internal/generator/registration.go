package generator

import (
	"context"
	"errors"
	"net/http"

	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/plugins/envoy-bootstrap/internal/envoy"
	"github.com/pannier/pannier/plugins/internal/consul"
	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/service"
)

// proxy asks once for all that the bootstrap of req's proxy needs.
func (g *Generator) proxy(ctx context.Context, c service.Consul, req bootstrap.Request) (envoy.Proxy, error) {
	var none envoy.Proxy
	token, err := streamToken(req.TokenFile)
	if err != nil {
		return none, err
	}
	nodeToken, err := consul.Token(c.TokenFile)
	if err != nil {
		return none, err
	}
	registered, err := g.registration(ctx, c, first(token, nodeToken), req.ProxyID)
	if err != nil {
		return none, err
	}
	server, err := g.server(ctx, c, first(nodeToken, token))
	if err != nil {
		return none, err
	}
	admin, err := bindTo(ctx, req.Admin)
	if err != nil {
		return none, err
	}
	ready, err := bindTo(ctx, req.Ready)
	if err != nil {
		return none, err
	}
	p := envoy.Proxy{
		ID:         req.ProxyID,
		Service:    first(registered.Proxy.DestinationServiceName, registered.Service),
		Datacenter: registered.Datacenter,
		Namespace:  first(registered.Namespace, c.Namespace),
		Partition:  first(registered.Partition, c.Partition),
		Config:     registered.Proxy.Config,
		Admin:      admin,
		Ready:      ready,
		Server:     server,
		Token:      token,
	}
	// The agent merges the proxy-defaults into the registration.
	if logs := registered.Proxy.AccessLogs; logs != nil {
		p.AccessLogs = &envoy.AccessLogs{
			Enabled: logs.Enabled, Type: string(logs.Type), Path: logs.Path, JSONFormat: logs.JSONFormat, TextFormat: logs.TextFormat,
		}
	}
	return p, nil
}

// first is the first text that is not empty.
func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// registration is the proxy as the local agent knows it.
func (g *Generator) registration(ctx context.Context, c service.Consul, token, id string) (*api.AgentService, error) {
	client, err := g.pool.Client(c, token)
	if err != nil {
		return nil, err
	}
	s, _, err := client.Agent().Service(id, (&api.QueryOptions{}).WithContext(ctx))
	var answer api.StatusError
	switch {
	case errors.As(err, &answer) && answer.Code == http.StatusNotFound:
		return nil, notYet{status.Errorf(codes.NotFound, "it is not registered with the agent of Consul %q (%s): "+
			"look there for it (/v1/agent/services), and in the host's log for the registration, which comes before the bootstrap", c.Name, c.Address)}
	case unknownToken(err):
		return nil, notYet{consul.Error(err, c, "read its registration with its token, which the agent does not know")}
	case err != nil:
		return nil, consul.Error(err, c, "read its registration")
	}
	switch s.Kind {
	case api.ServiceKindConnectProxy, api.ServiceKindIngressGateway, api.ServiceKindTerminatingGateway, api.ServiceKindMeshGateway, api.ServiceKindAPIGateway:
		if s.Proxy != nil {
			return s, nil
		}
	}
	return nil, status.Errorf(codes.InvalidArgument, "the service of that id on Consul %q is neither a sidecar nor a gateway (kind %q): "+
		"name the proxy's id; a sidecar's is the service's with -sidecar-proxy behind it", c.Name, s.Kind)
}
