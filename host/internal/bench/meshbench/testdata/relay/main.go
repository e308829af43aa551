// A process that only passes requests for tokens on to Consul's API, without Pannier: a plugin of go-plugin's, as its
// documentation has it, with Consul's own client. `relay ADDRESS CA_FILE TOKEN`.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"

	"github.com/hashicorp/consul/api"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/service"
)

type relay struct {
	identity.Identity
	consul *api.Client
}

func (r *relay) Derive(ctx context.Context, _ service.Consul, req identity.DeriveRequest) (identity.Token, string,
	error,
) {
	made, _, err := r.consul.ACL().TokenCreate(&api.ACLToken{
		AccessorID: req.ID, Description: req.Subject.Workload, Local: true,
		ServiceIdentities: []*api.ACLServiceIdentity{{ServiceName: req.Subject.Service}},
	}, new(api.WriteOptions).WithContext(ctx))
	if err != nil {
		return identity.Token{}, "", err
	}
	return identity.Token{Accessor: made.AccessorID}, made.SecretID, nil
}

// plugin is what go-plugin serves.
type plugin struct {
	goplugin.NetRPCUnsupportedPlugin
	relay *relay
}

func (p plugin) GRPCServer(_ *goplugin.GRPCBroker, s *grpc.Server) error {
	identity.Plugin(p.relay).Register(s)
	return nil
}

func (plugin) GRPCClient(context.Context, *goplugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, nil
}

func main() {
	pem, err := os.ReadFile(os.Args[2])
	if err != nil {
		panic(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	transport := &http.Transport{
		MaxIdleConnsPerHost: 64, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
	}
	client, err := api.NewClient(&api.Config{
		Address: os.Args[1], Token: os.Args[3], Transport: transport, HttpClient: &http.Client{Transport: transport},
	})
	if err != nil {
		panic(err)
	}
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: goplugin.HandshakeConfig{ProtocolVersion: 1, MagicCookieKey: "BENCH", MagicCookieValue: "1"},
		Plugins:         goplugin.PluginSet{"identity": plugin{relay: &relay{consul: client}}},
		GRPCServer:      goplugin.DefaultGRPCServer,
	})
}
