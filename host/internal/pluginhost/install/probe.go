package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
)

// probeTime bounds the start of a plugin and its answer, as the agent does.
const probeTime = 10 * time.Second

// probe starts a file as a plugin, and returns the name and the version that it reports. It is not configured: that is
// tried by the agent, which keeps what serves if it fails.
func probe(ctx context.Context, path string, args []string) (name, version string, err error) {
	dir, err := os.MkdirTemp("", "pannier-") // short: it becomes part of a socket's address
	if err != nil {
		return "", "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	authority, err := wire.NewAuthority()
	if err != nil {
		return "", "", err
	}
	const server = "install.plugin.pannier"
	bundle, err := authority.Issue(server)
	if err != nil {
		return "", "", err
	}
	key := filepath.Join(dir, "tls.pem")
	if err := os.WriteFile(key, bundle, 0o600); err != nil {
		return "", "", err
	}
	cmd := exec.Command(path, args...) // the client ends it
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), wire.EnvTLSBundle + "=" + key}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var said lastWords
	client := goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig:  wire.Handshake,
		VersionedPlugins: wire.Plugins(nil),
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		TLSConfig:        authority.ClientTLS(server),
		Cmd:              cmd,
		SkipHostEnv:      true,
		StartTimeout:     probeTime,
		UnixSocketConfig: &goplugin.UnixSocketConfig{TempDir: dir},
		Logger:           hclog.NewNullLogger(),
		Stderr:           &said,
	})
	defer func() {
		client.Kill()
		if cmd.Process != nil {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it has started; usually nothing
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	proto, err := client.Client()
	if errors.Is(err, syscall.ETXTBSY) {
		return "", "", err
	}
	if err != nil {
		client.Kill() // waits for what it prints
		// A page of text follows.
		why, _, _ := strings.Cut(strings.Join(strings.Fields(err.Error()), " "), " This usually means")
		return "", "", fmt.Errorf("handshake: %s%s", why, said)
	}
	conn, err := proto.Dispense(wire.PluginName)
	if err != nil {
		return "", "", fmt.Errorf("connect: %w", err)
	}
	// wire.Plugins returns nothing else.
	info, err := pluginv1.NewPluginServiceClient(conn.(*grpc.ClientConn)).Info(ctx, &pluginv1.InfoRequest{})
	if err != nil {
		return "", "", fmt.Errorf("info: %w", err)
	}
	return info.GetName(), info.GetVersion(), nil
}

// lastWords keeps the end of what a process prints.
type lastWords []byte

func (l *lastWords) Write(p []byte) (int, error) {
	const most = 1000 // bytes
	*l = append(*l, p...)
	*l = (*l)[max(0, len(*l)-most):]
	return len(p), nil
}

func (l lastWords) String() string {
	if text := strings.Join(strings.Fields(string(l)), " "); text != "" {
		return "; it printed: " + text
	}
	return ""
}
