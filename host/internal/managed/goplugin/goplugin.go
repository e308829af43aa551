// Package goplugin connects package managed with HashiCorp's go-plugin, which does the handshake, the connection and
// the reattachment. The process, its log and its end are managed's: go-plugin would end a plugin with its host.
package goplugin

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"

	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/host/internal/system/process"
)

// Client is the connection to a plugin.
type Client struct {
	Conn    *grpc.ClientConn
	process *managed.Process
	client  *goplugin.Client
	proto   goplugin.ClientProtocol
	run     *pluginRunner
}

// Start starts a plugin, does the handshake, and connects. cfg.UnixSocketConfig.TempDir is where the plugin gets a
// directory of its own for its socket, p.Run.Dir. spec returns what to start, with the variables that go-plugin
// needs; fork is that of managed.Transport.
func Start(ctx context.Context, p *managed.Process, cfg *goplugin.ClientConfig,
	spec func(env []string) (process.Spec, error), fork func(process.Spec) error,
) (*Client, error) {
	run := newRunner(p)
	run.fork = fork
	cfg.RunnerFunc = func(_ hclog.Logger, cmd *exec.Cmd, dir string) (_ runner.Runner, err error) {
		p.Run.Dir = dir
		if run.spec, err = spec(cmd.Env); err != nil {
			_ = os.RemoveAll(dir)
			return nil, err
		}
		return run, nil
	}
	c, err := connect(ctx, cfg, run)
	if err == nil {
		p.Run.Protocol = c.client.NegotiatedVersion()
	}
	return c, err
}

// Reattach connects to a plugin that an earlier host has started. On an error the plugin runs on.
func Reattach(ctx context.Context, p *managed.Process, cfg *goplugin.ClientConfig) (*Client, error) {
	run := newRunner(p)
	cfg.Plugins = cfg.VersionedPlugins[p.Run.Protocol]
	cfg.Reattach = &goplugin.ReattachConfig{
		Protocol: goplugin.ProtocolGRPC, ProtocolVersion: p.Run.Protocol,
		Addr:         &net.UnixAddr{Net: "unix", Name: p.Run.Address},
		ReattachFunc: func() (runner.AttachedRunner, error) { return run, nil },
	}
	return connect(ctx, cfg, run)
}

func connect(ctx context.Context, cfg *goplugin.ClientConfig, run *pluginRunner) (_ *Client, err error) {
	c := &Client{process: run.process, client: goplugin.NewClient(cfg), run: run}
	defer context.AfterFunc(ctx, run.abort)()
	defer func() {
		if err != nil {
			run.detach() // otherwise go-plugin waits for the process
			if run.process.Found {
				return // go-plugin's Kill would ask it to end, and it may be as well as before
			}
			_ = run.process.Kill(context.WithoutCancel(ctx))
			c.client.Kill()
		}
	}()
	addr, err := c.client.Start()
	if err != nil {
		// go-plugin's errors have many lines
		return nil, fmt.Errorf("handshake: %s", strings.Join(strings.Fields(err.Error()), " "))
	}
	if c.proto, err = c.client.Client(); err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	grpcClient, ok := c.proto.(*goplugin.GRPCClient)
	if !ok {
		return nil, fmt.Errorf("connect: the plugin speaks another protocol than gRPC: %T", c.proto)
	}
	c.Conn, run.address = grpcClient.Conn, addr.String()
	return c, nil
}

// Address is the address of the plugin's socket.
func (c *Client) Address() string { return c.run.address }

// Close ends what go-plugin runs for the plugin, which runs on if its process has not ended: go-plugin would ask it to
// end, which cuts calls in flight.
func (c *Client) Close() {
	c.run.detach()
	if c.process.Ended() {
		c.client.Kill()
		return
	}
	// Close the connection first: proto.Close would ask the plugin to end, and cannot without one. The rest of it ends
	// go-plugin's goroutines.
	_ = c.Conn.Close()
	_ = c.proto.Close()
}
