package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/identity"
	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/testplugin"
)

// TestPluginProcess uses a real plugin process: it is configured, and a token is derived, read, derived again
// by a new process after the first one was killed, listed and revoked. Nothing that others can read of the
// process contains a secret.
func TestPluginProcess(t *testing.T) {
	cluster := consul.Start(t, consul.Options{ACL: true, TLS: true})
	cluster.Policy(t, "pannier-sids", `acl = "write"`)
	own := cluster.Token(t, "pannier-sids")
	config := fmt.Appendf(nil, `{"token_file": %q}`, cluster.TokenFile(t, own))
	where := cluster.Service(service.DefaultConsul, "")
	req := identity.DeriveRequest{
		ID:      "7d7a4a3e-6a52-4e3b-9a55-0a3f0a4c8f11",
		Subject: identity.Subject{Cluster: "c1", Node: "n1", Namespace: "default", Workload: "web-1", Service: "web"},
	}
	ctx := t.Context()

	first := testplugin.Start(t, "sids")
	conn, process, firstLog := first.Conn, first.Process, first.Log
	plugin := pluginv1.NewPluginServiceClient(conn)
	if info, err := plugin.Info(ctx, &pluginv1.InfoRequest{}); err != nil || info.GetName() != "sids" ||
		info.GetKind() != identity.Kind {
		t.Errorf("got %v, %v", info, err)
	}
	_, err := plugin.Validate(ctx, &pluginv1.ValidateRequest{Config: []byte(`{"token": "x"}`)})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), `unknown key "token"`) {
		t.Errorf("an unknown key: got %v", err)
	}
	ids := identity.NewClient(conn)
	if _, _, err := ids.Derive(ctx, where, req); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("without a configuration: got %v, want FailedPrecondition", err)
	}
	if _, err := plugin.Configure(ctx, &pluginv1.ConfigureRequest{Config: config}); err != nil {
		t.Fatal(err)
	}
	token, secret, err := ids.Derive(ctx, where, req)
	if err != nil {
		t.Fatal(err)
	}
	public := readable(t, process.Pid)
	check.NoError(t, process.Kill())

	second := testplugin.Start(t, "sids")
	conn, process, log := second.Conn, second.Process, second.Log
	ids = identity.NewClient(conn)
	if _, err := pluginv1.NewPluginServiceClient(conn).Configure(ctx,
		&pluginv1.ConfigureRequest{Config: config}); err != nil {
		t.Fatal(err)
	}
	again, same, err := ids.Derive(ctx, where, req)
	if err != nil || again.Accessor != req.ID || again.Subject != req.Subject || same != secret {
		t.Errorf("by another process: got %+v, the same secret: %v, %v", again, same == secret, err)
	}
	if read, err := ids.Read(ctx, where, secret); err != nil || read != again {
		t.Errorf("got %+v, %v, want %+v", read, err, token)
	}
	if list, err := ids.List(ctx, where, "c1"); err != nil || len(list) != 1 || list[0] != again {
		t.Errorf("got %+v, %v", list, err)
	}
	if err := ids.Revoke(ctx, where, req.ID, secret); err != nil {
		t.Error(err)
	}
	if _, err := ids.Read(ctx, where, secret); status.Code(err) != codes.NotFound {
		t.Errorf("got %v, want NotFound", err)
	}

	public += readable(t, process.Pid) + firstLog.String() + log.String()
	if !strings.Contains(public, "sids") {
		t.Errorf("neither the command line nor the log was read: %s", public)
	}
	for _, s := range []string{own, secret} {
		if strings.Contains(public, s) {
			t.Errorf("a secret is in the log, the command line or the environment:\n%s", public)
		}
	}
}

// readable returns everything about a process that others can read.
func readable(t *testing.T, pid int) string {
	t.Helper()
	var out string
	for _, name := range []string{"cmdline", "environ"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
		if err != nil {
			t.Fatal(err)
		}
		out += string(text) + "\n"
	}
	return out
}
