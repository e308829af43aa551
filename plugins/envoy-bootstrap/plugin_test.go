package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/wire"
	"github.com/pannier/pannier/test/consul"
	"github.com/pannier/pannier/test/testbin"
	"github.com/pannier/pannier/test/xds"
)

// startPlugin runs the built plugin as a host does and returns the host's side of it,
// its pid, and what the process writes into its log.
func startPlugin(t *testing.T) (bootstrap.Bootstrap, int, *output) {
	t.Helper()
	bin := testbin.Build(t, "plugins/envoy-bootstrap")
	authority, err := wire.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := authority.Issue("envoy-bootstrap")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "tls")
	if err := os.WriteFile(file, bundle, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin)
	cmd.Env = append(os.Environ(), wire.EnvTLSBundle+"="+file, wire.EnvLogLevel+"=trace")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log := &output{}
	client := goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig:  wire.Handshake,
		VersionedPlugins: wire.Plugins(nil),
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		Cmd:              cmd,
		TLSConfig:        authority.ClientTLS("envoy-bootstrap"),
		Stderr:           log,
		Logger:           hclog.NewNullLogger(),
	})
	t.Cleanup(client.Kill)
	protocol, err := client.Client()
	if err != nil {
		t.Fatalf("start the plugin: %v\n%s", err, log)
	}
	conn, err := protocol.Dispense("pannier")
	if err != nil {
		t.Fatal(err)
	}
	return bootstrap.NewClient(conn.(*grpc.ClientConn)), cmd.Process.Pid, log
}

// TestPluginProcess makes a bootstrap, and fails to, through the process's border, and
// looks for the token everywhere that it must not be.
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
	plugin, pid, log := startPlugin(t)
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
	if n := len(b.GetStaticResources().GetListeners()); n != 1 || b.GetNode().GetId() != id || xds.Token(b) != token.SecretID {
		t.Errorf("want the proxy's id and token and its ready listener, got\n%s", out)
	}

	// The agent may not be asked for its ports: the log has the warning.
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

	if !strings.Contains(log.String(), "agent:read") {
		t.Errorf("no warning in the log:\n%s", log)
	}
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

// output is the process's log, which may be read while it is written.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}
