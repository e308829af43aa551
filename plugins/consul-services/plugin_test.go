package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/testplugin"
)

// TestPluginProcess registers, keeps and removes a service through a real plugin process.
func TestPluginProcess(t *testing.T) {
	process := testplugin.Start(t, "consul-services", "CONSUL_HTTP_TOKEN_FILE=/none")
	plugin, log := registration.NewClient(process.Conn), process.Log
	c := consul.Start(t, consul.Options{ACL: true, TLS: true})
	c.Policy(t, "node", `
service_prefix "" { policy = "write" }
node_prefix    "" { policy = "read" }
agent_prefix   "" { policy = "read" }
`)
	secret := c.Token(t, "node")
	con := c.Service("default", c.TokenFile(t, secret))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	owner := registration.Owner{Cluster: "c1", Node: "n1"}
	web := registration.Instance{
		ID: "pannier:n1:default:w:web", Owner: owner, Namespace: "default", Workload: "w",
		Service: service.Service{
			Name: "web", Port: "8080", Tags: []string{"a"},
			Checks: []service.Check{
				{Type: service.CheckProcess, Interval: "1h"},
				{
					Type: service.CheckHTTP, Path: "/", Interval: "1h",
					Header: map[string]service.HeaderValues{"Authorization": {Values: []string{"hunter2"}}},
				},
			},
			Connect: &service.Connect{SidecarService: &service.SidecarService{Proxy: &service.Proxy{Config: map[string]any{"n": 1, "f": 1.5, "l": []any{"x", true}}}}},
		},
	}
	proxyID, err := plugin.Register(ctx, con, web)
	if err != nil || proxyID != web.ID+"-sidecar-proxy" {
		t.Fatalf("got %q, %v", proxyID, err)
	}
	req := registration.SyncRequest{Owner: owner, Instances: []registration.Instance{web}}
	index, changes, err := plugin.Sync(ctx, con, req)
	if err != nil || len(changes) != 0 || index == 0 {
		t.Fatalf("got %d, %v, %v", index, changes, err)
	}
	if err := plugin.Heartbeat(ctx, con, []registration.Beat{{ID: web.ID, Healthy: true, Output: "pid 7"}}); err != nil {
		t.Error(err)
	}
	check.NoError(t, c.Client(c.Management).Agent().ServiceDeregister(web.ID))
	for req.Index, req.Wait = index, 10*time.Second; len(changes) == 0; {
		// The heartbeat changes the catalog, too.
		if req.Index, changes, err = plugin.Sync(ctx, con, req); err != nil {
			t.Fatal(err)
		}
	}
	if changes[0] != (registration.Change{ID: web.ID, Action: registration.Registered, Reason: "missing"}) {
		t.Errorf("got %v", changes)
	}
	if err := plugin.Deregister(ctx, con, owner, web.ID); err != nil {
		t.Error(err)
	}
	if left := c.Services(t); len(left) != 0 {
		t.Errorf("left are %v", left)
	}
	bad := con
	bad.TokenFile = c.TokenFile(t, "n0t4t0k3n")
	_, err = plugin.Register(ctx, bad, web)
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("got %v", err)
	}
	for _, secret := range []string{secret, "n0t4t0k3n", "hunter2"} {
		if said := log.String() + err.Error(); strings.Contains(said, secret) {
			t.Errorf("a secret in the log, or in an error:\n%s", said)
		}
	}
}
