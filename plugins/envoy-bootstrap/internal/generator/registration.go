package generator

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"

	"github.com/hashicorp/consul/api"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/plugins/envoy-bootstrap/internal/envoy"
	"github.com/pannier/pannier/plugins/internal/consul"
	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/service"
)

// proxy makes one attempt to read everything that the bootstrap of req's proxy needs.
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
	registered, err := g.registration(ctx, c, cmp.Or(token, nodeToken), req.ProxyID)
	if err != nil {
		return none, err
	}
	server, err := g.server(ctx, c, cmp.Or(nodeToken, token))
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
		Service:    cmp.Or(registered.Proxy.DestinationServiceName, registered.Service),
		Datacenter: registered.Datacenter,
		Namespace:  cmp.Or(registered.Namespace, c.Namespace),
		Partition:  cmp.Or(registered.Partition, c.Partition),
		Config:     registered.Proxy.Config,
		Admin:      admin,
		Ready:      ready,
		Server:     server,
		Token:      token,
		TokenFile:  req.TokenFile,
		Dir:        req.Dir,
	}
	// The agent merges the proxy-defaults into the registration.
	if logs := registered.Proxy.AccessLogs; logs != nil {
		p.AccessLogs = &envoy.AccessLogs{
			Enabled: logs.Enabled, Type: string(
				logs.Type), Path: logs.Path, JSONFormat: logs.JSONFormat, TextFormat: logs.TextFormat,
		}
	}
	return p, nil
}

// registration returns the proxy's registration at the local agent.
func (g *Generator) registration(ctx context.Context, c service.Consul, token, id string) (*api.AgentService, error) {
	client, err := g.pool.Client(c, token)
	if err != nil {
		return nil, err
	}
	s, _, err := client.Agent().Service(id, (&api.QueryOptions{}).WithContext(ctx))
	switch {
	case consul.Answered(err, http.StatusNotFound):
		return nil, notYet{status.Errorf(codes.NotFound, "it is not registered with the agent of Consul %q (%s): "+
			"look there for it (/v1/agent/services), and in the host's log for the registration, which comes before the bootstrap", c.Name, c.Address)}
	case unknownToken(err):
		return nil, notYet{consul.Error(err, c, "read its registration with its token, which the agent does not know")}
	case err != nil:
		return nil, consul.Error(err, c, "read its registration")
	}
	switch s = cmp.Or(s, &api.AgentService{}); s.Kind {
	case api.ServiceKindConnectProxy, api.ServiceKindIngressGateway, api.ServiceKindTerminatingGateway,
		api.ServiceKindMeshGateway, api.ServiceKindAPIGateway:
		if s.Proxy != nil {
			return s, nil
		}
	}
	return nil, status.Errorf(codes.InvalidArgument,
		"the service of that id on Consul %q is neither a sidecar nor a gateway (kind %q): "+
			"use the proxy's id; a sidecar's is the service's id with the suffix -sidecar-proxy", c.Name, s.Kind)
}

// maxToken bounds a token file, in bytes.
const maxToken = 4096

// streamToken reads the token of the proxy's xDS stream; an empty path means no token. The file is in a directory
// of the workload's, and this process may read files that the workload may not, so links are refused: neither
// symbolic links nor further hard links are allowed. FailedPrecondition names the file but never its content.
func streamToken(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ELOOP):
		return "", refused(path, "is a symbolic link")
	case err != nil:
		return "", refused(path, "cannot be read: "+err.Error())
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", refused(path, "cannot be read: "+err.Error())
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return "", refused(path, "is not a regular file")
	case !ok || stat.Nlink != 1:
		return "", refused(path, "is a hard link to another file")
	}
	text, err := io.ReadAll(io.LimitReader(f, maxToken))
	if err != nil {
		return "", refused(path, "cannot be read: "+err.Error())
	}
	words := strings.Fields(string(text))
	switch {
	case len(words) == 0:
		return "", refused(path, "is empty")
	case len(words) > 1 || len(text) == maxToken:
		return "", refused(path, "holds more than one word")
	}
	return words[0], nil
}

func refused(path, why string) error {
	return status.Errorf(codes.FailedPrecondition,
		"the token file %q %s: it must be a file that holds the secret id of a Consul ACL token and nothing else", path, why)
}
