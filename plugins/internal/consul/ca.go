package consul

import (
	"cmp"
	"context"
	"crypto/x509"
	"strings"

	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/internal/cabundle"
	"github.com/pannier/pannier/sdk/service"
)

// ProxyCA returns the certificates, in PEM, with which a proxy verifies Consul's xDS server: those of grpc_ca_file or
// ca_file or, without either, the mesh's own, which sign the certificates of agents with auto_encrypt or auto_config.
// Without any the proxy would send its token to any server that answers. FailedPrecondition: there are none.
func ProxyCA(ctx context.Context, client *api.Client, c service.Consul) (string, error) {
	if path := cmp.Or(c.GRPCCAFile, c.CAFile); path != "" {
		pem, err := cabundle.Read(path)
		if err != nil {
			return "", status.Errorf(codes.FailedPrecondition, "the xDS server's CA file cannot be read: %v", err)
		}
		if !x509.NewCertPool().AppendCertsFromPEM(pem) {
			return "", status.Errorf(codes.FailedPrecondition, "the xDS server's CA file %q has no PEM certificate", path)
		}
		return string(pem), nil
	}
	roots, _, err := client.Agent().ConnectCARoots(new(api.QueryOptions).WithContext(ctx))
	if err != nil {
		return "", Error(err, c, "ask the agent for the mesh's CA, since neither grpc_ca_file nor ca_file is set")
	}
	var pems strings.Builder
	for _, root := range Present(roots.Roots) {
		pems.WriteString(strings.TrimSpace(root.RootCertPEM) + "\n")
	}
	if pems.Len() == 0 {
		return "", status.Errorf(codes.FailedPrecondition,
			"Consul %q (%s) has no mesh CA, and neither grpc_ca_file nor ca_file is set", c.Name, c.Address)
	}
	return pems.String(), nil
}
