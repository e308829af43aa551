package generator

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/xds"
)

// TestStream opens the xDS stream to Consul with only the bootstrap file. It must be refused with a token
// that is wrong, revoked or of another service.
func TestStream(t *testing.T) {
	c := consul.Start(t, consul.Options{ACL: true, TLS: true})
	web := sidecar("web-1-sidecar-proxy", nil)
	web.Proxy.Upstreams = []api.Upstream{{DestinationName: "db", LocalBindPort: 9191}}
	register(t, c, web)
	acl := c.Client(c.Management).ACL()
	token, _, err := acl.TokenCreate(&api.ACLToken{
		Local:             true,
		ServiceIdentities: []*api.ACLServiceIdentity{{ServiceName: "web"}},
	}, nil)
	check.NoError(t, err)
	b := bootstrapFile(t, c, web.ID, token.SecretID)
	if got := xds.Token(b); got != token.SecretID {
		t.Errorf("the bootstrap does not have the proxy's token")
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream := open(ctx, t, b)
	check.NoError(t, stream.Ready())
	clusters, listeners := slices.Sorted(maps.Keys(stream.Clusters)), slices.Sorted(maps.Keys(stream.Listeners))
	if len(clusters) != 2 || clusters[1] != "local_app" || !strings.HasPrefix(clusters[0], "db.default.dc1.internal.") {
		t.Errorf("got the clusters %q, want those of web and of db", clusters)
	}
	if len(listeners) != 2 || !strings.HasPrefix(listeners[0], "db:127.0.0.1:9191") ||
		!strings.HasPrefix(listeners[1], "public_listener:") {
		t.Errorf("got the listeners %q, want the public one and db's", listeners)
	}

	other := identity("other")(t, c)
	mustRefuse(ctx, t, bootstrapFile(t, c, web.ID, other), codes.PermissionDenied)
	setToken(b, "11111111-2222-3333-4444-555555555555")
	mustRefuse(ctx, t, b, codes.Unauthenticated)
	setToken(b, token.SecretID)
	if err := open(ctx, t, b).Ready(); err != nil {
		t.Errorf("a second stream: %v", err)
	}
	if _, err := acl.TokenDelete(token.AccessorID, nil); err != nil {
		t.Fatal(err)
	}
	mustRefuse(ctx, t, b, codes.Unauthenticated)
}

// TestStreamTrustsOneCA checks that the file's CA decides which server gets the token.
func TestStreamTrustsOneCA(t *testing.T) {
	c := consul.Start(t, consul.Options{ACL: true, TLS: true})
	web := sidecar("web-1-sidecar-proxy", nil)
	register(t, c, web)
	secret := identity("web")(t, c)
	at := c.Service("default", "")
	at.GRPCCAFile = "testdata/ca.pem"
	out, err := generate(t, at, asked(web.ID, c.TokenFile(t, secret)), secret)
	check.NoError(t, err)
	b, err := xds.Parse(out)
	check.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	mustRefuse(ctx, t, b, codes.Unavailable)
}

// bootstrapFile generates a proxy's bootstrap and parses it.
func bootstrapFile(t *testing.T, c *consul.Cluster, proxyID, secret string) *bootstrapv3.Bootstrap {
	t.Helper()
	out, err := generate(t, c.Service("default", ""), asked(proxyID, c.TokenFile(t, secret)), secret)
	check.NoError(t, err)
	path := filepath.Join(t.TempDir(), "envoy_bootstrap.json")
	check.NoError(t, os.WriteFile(path, out, 0o400))
	b, err := xds.Read(path)
	check.NoError(t, err)
	return b
}

func setToken(b *bootstrapv3.Bootstrap, secret string) {
	b.GetDynamicResources().GetAdsConfig().GetGrpcServices()[0].GetInitialMetadata()[0].Value = secret
}

func open(ctx context.Context, t *testing.T, b *bootstrapv3.Bootstrap) *xds.Stream {
	t.Helper()
	stream, err := xds.Open(ctx, b)
	check.NoError(t, err)
	t.Cleanup(func() {
		if err := stream.Close(); err != nil {
			t.Error(err)
		}
	})
	return stream
}

func mustRefuse(ctx context.Context, t *testing.T, b *bootstrapv3.Bootstrap, want codes.Code) {
	t.Helper()
	stream, err := xds.Open(ctx, b)
	if err == nil {
		err = stream.Ready()
		if cerr := stream.Close(); cerr != nil {
			t.Error(cerr)
		}
	}
	if status.Code(err) != want {
		t.Errorf("the stream ends with %v, want %s", err, want)
	}
}
