package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/testplugin"
	"github.com/pannier/pannier/test/lib/xds"
)

// TestPluginProcess generates a bootstrap, and fails to generate one, with a real plugin process. It then
// searches for the token wherever it must not be.
func TestPluginProcess(t *testing.T) {
	c := consul.Start(t, consul.Options{ACL: true, TLS: true})
	const id = "web-1-sidecar-proxy"
	if err := c.Client(c.Management).Agent().ServiceRegister(&api.AgentServiceRegistration{
		Kind: api.ServiceKindConnectProxy, ID: id, Name: "web-sidecar-proxy", Port: 20000,
		Proxy: &api.AgentServiceConnectProxyConfig{DestinationServiceName: "web"},
	}); err != nil {
		t.Fatal(err)
	}
	token, _, err := c.Client(c.Management).ACL().TokenCreate(&api.ACLToken{
		Local: true, ServiceIdentities: []*api.ACLServiceIdentity{{ServiceName: "web"}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	process := testplugin.Start(t, "envoy-bootstrap")
	plugin, pid, log := bootstrap.NewClient(process.Conn), process.Process.Pid, process.Log
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	at := c.Service("default", "")
	req := bootstrap.Request{
		ProxyID: id, TokenFile: c.TokenFile(t, token.SecretID),
		Admin: bootstrap.Bind{Address: "127.0.0.1", Port: 19001}, Ready: bootstrap.Bind{Address: "127.0.0.1", Port: 19002},
	}
	out, err := plugin.Generate(ctx, at, req)
	if err != nil {
		t.Fatal(err)
	}
	b, err := xds.Parse(out)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(b.GetStaticResources().GetListeners()); n != 1 || b.GetNode().GetId() != id ||
		xds.Token(b) != token.SecretID {
		t.Errorf("want the proxy's id and token and its ready listener, got\n%s", out)
	}

	// Without permission to read the agent's ports, the log has a warning.
	at.GRPCAddress = ""
	if _, err := plugin.Generate(ctx, at, req); err != nil {
		t.Error(err)
	}
	req.ProxyID, req.Wait = "never", 100*time.Millisecond
	_, never := plugin.Generate(ctx, at, req)
	if status.Code(never) != codes.NotFound {
		t.Errorf("got %v, want NotFound", never)
	}
	req.Wait = time.Minute
	short, end := context.WithTimeout(ctx, 100*time.Millisecond)
	defer end()
	_, late := plugin.Generate(short, at, req)
	if status.Code(late) != codes.DeadlineExceeded {
		t.Errorf("got %v, want the caller's deadline to end the call", late)
	}
	req.ProxyID, req.TokenFile = id, "/does/not/exist"
	_, unreadable := plugin.Generate(ctx, at, req)
	if status.Code(unreadable) != codes.FailedPrecondition || !strings.Contains(unreadable.Error(), req.TokenFile) {
		t.Errorf("got %v, want FailedPrecondition and the file's name", unreadable)
	}

	log.Await(t, "agent:read")
	for where, text := range map[string]string{
		"log": log.String(), "errors": fmt.Sprint(never, late, unreadable),
		"argv": procFile(t, pid, "cmdline"), "environment": procFile(t, pid, "environ"),
	} {
		if strings.Contains(text, token.SecretID) {
			t.Errorf("the token is in the plugin's %s", where)
		}
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("the plugin's threads: %v", err)
	}
	for _, children := range threads {
		if text, err := os.ReadFile(children); err == nil && len(text) != 0 { // a thread may have ended
			t.Errorf("the plugin has started programs: %s", text)
		}
	}
}

func procFile(t *testing.T, pid int, name string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
