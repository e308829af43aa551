package meshbench

import (
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/pannier/pannier/host/internal/pluginhost/catalog"
	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/check"
)

// measureBootstrap compares generating a sidecar's bootstrap through the host with Consul's own command,
// alternately.
func measureBootstrap(b *testing.B, m *mesh, r *table.Section) {
	const commands, perCommand = 15, 20
	proxyID := m.sidecar(b, "web")
	made, _, err := m.consul.Client(m.consul.Management).ACL().TokenCreate(&api.ACLToken{
		ServiceIdentities: []*api.ACLServiceIdentity{{ServiceName: "web"}}, Local: true,
	}, nil)
	check.NoError(b, err)
	req := bootstrap.Request{
		ProxyID: proxyID, TokenFile: m.consul.TokenFile(b, made.SecretID),
		Admin: bootstrap.Bind{Address: "127.0.0.1", Port: 19000}, Ready: bootstrap.Bind{Address: "127.0.0.1", Port: 19100},
	}
	var host, command table.Samples
	for turn := range measure.Turns(commands+1, 20*time.Second) {
		if turn == 1 { // the first is a warm-up
			host, command = nil, nil
		}
		for range perCommand {
			var made bootstrap.Result
			host = append(host, took(b, func(ctx context.Context) error {
				return catalog.Do(ctx, m.plugin, catalog.Bootstrap, "", func(ctx context.Context, c bootstrap.Bootstrap) (err error) {
					made, err = c.Generate(ctx, m.reach, req)
					return err
				})
			}))
			wantJSON(b, made.Bootstrap)
		}
		cmd := m.consul.Command(made.SecretID, "connect", "envoy", "-bootstrap", "-proxy-id", proxyID,
			"-admin-bind", "127.0.0.1:19000", "-envoy-ready-bind-address", "127.0.0.1", "-envoy-ready-bind-port", "19100",
			"-grpc-addr", m.reach.GRPCAddress, "-ca-file", m.reach.CAFile)
		at := time.Now()
		file, err := cmd.Output()
		command = append(command, time.Since(at))
		if err != nil {
			var exit *exec.ExitError
			errors.As(err, &exit)
			b.Fatalf("consul connect envoy: %v: %s", err, exit.Stderr)
		}
		wantJSON(b, file)
	}
	r.Add(
		host.Row("a bootstrap through the host, p50", 0.5),
		host.Row("a bootstrap through the host, p99", 0.99),
		command.Row("`consul connect envoy -bootstrap`, p50", 0.5),
		table.Over("the second over the first", command.Row("", 0.5), host.Row("", 0.5)).Least(25),
	)
}

func wantJSON(b *testing.B, file []byte) {
	b.Helper()
	if len(file) == 0 || !json.Valid(file) {
		b.Fatalf("a bootstrap of %d bytes is no JSON", len(file))
	}
}

// sidecar registers a service with a sidecar through the host until the end of the benchmark, and returns the
// sidecar's id.
func (m *mesh) sidecar(b *testing.B, name string) (proxyID string) {
	b.Helper()
	i := registration.Instance{
		ID: "pannier:a:default:" + name + ":" + name, Namespace: "default", Workload: name,
		Owner: registration.Owner{Cluster: "bench", Node: node},
		Service: service.Service{
			Name: name, Port: "8080", Connect: &service.Connect{SidecarService: &service.SidecarService{}},
		},
	}
	err := catalog.Do(b.Context(), m.plugin, catalog.Registration, "", func(ctx context.Context, c registration.Registration) (err error) {
		proxyID, err = c.Register(ctx, m.reach, i)
		return err
	})
	check.NoError(b, err)
	b.Cleanup(func() {
		err := catalog.Do(context.Background(), m.plugin, catalog.Registration, "", func(ctx context.Context, c registration.Registration) error {
			return c.Deregister(ctx, m.reach, i.Owner, i.ID)
		})
		if err != nil {
			b.Error(err)
		}
	})
	return proxyID
}
