package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
)

// clientConfig is what a start and a reattachment have in common.
func (i *instance) clientConfig(token string) *goplugin.ClientConfig {
	return &goplugin.ClientConfig{
		HandshakeConfig:  wire.Handshake,
		VersionedPlugins: wire.Plugins(nil),
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		TLSConfig:        i.sup.authority.ClientTLS(serverName(token)),
		// go-plugin's client cannot be interrupted while it connects.
		GRPCDialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: min(connectTimeout, i.sup.cfg.StartTimeout/2),
		})},
		// What go-plugin would log, the instance reports.
		Logger: hclog.NewNullLogger(),
	}
}

// connectTimeout bounds connecting to a plugin's socket, TLS included.
const connectTimeout = 3 * time.Second

// serverName is the name in the certificate of one run of a plugin.
func serverName(token string) string { return strings.ToLower(token) + ".plugin.pannier" }

// connect does the handshake, or reattaches, and brings the plugin up. The
// generation is returned only without an error.
func (i *instance) connect(ctx context.Context, client *goplugin.Client, run *pluginRunner) (*generation, error) {
	addr, err := client.Start()
	if err != nil {
		return nil, fmt.Errorf("handshake: %s", strings.Join(strings.Fields(err.Error()), " ")) // go-plugin's have many lines
	}
	proto, err := client.Client()
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	raw, err := proto.Dispense(wire.PluginName)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	conn, ok := raw.(*grpc.ClientConn)
	if !ok {
		return nil, fmt.Errorf("connect: go-plugin gave a %T", raw)
	}
	gen := &generation{
		record: run.record, number: run.record.Number, sha: run.record.SHA256, launch: run.record.Launch,
		startedAt: run.record.StartedAt, pid: run.proc.PID(),
		run: run, over: run.meter.over, client: client, proto: proto, conn: conn,
		api: pluginv1.NewPluginServiceClient(conn), leaving: make(chan struct{}), drained: make(chan struct{}),
	}
	if gen.first, err = i.bringUp(ctx, gen); err != nil {
		return nil, err
	}
	// The plugin has read its key: it need not lie about any longer.
	_ = os.Remove(filepath.Join(run.runDir, "tls.pem"))
	run.record.Address, run.record.Kind, run.record.Version = addr.String(), gen.kind, gen.version
	if v := client.NegotiatedVersion(); v != 0 {
		run.record.Wire = v
	}
	if err := i.rec.save(i.sup.dir); err != nil {
		gen.health.close()
		return nil, err
	}
	return gen, nil
}

// bringUp asks a connected plugin who it is, configures it, and attends it.
func (i *instance) bringUp(ctx context.Context, gen *generation) (first health, err error) {
	info, err := gen.api.Info(ctx, &pluginv1.InfoRequest{})
	if err != nil {
		return first, callError("info", err)
	}
	if info.GetKind() == "" {
		return first, permanent{errors.New("info: the plugin does not say its kind")}
	}
	if err := i.spec.checkVersion(info.GetVersion()); err != nil {
		return first, permanent{err}
	}
	gen.kind, gen.version = info.GetKind(), info.GetVersion()
	if _, err := gen.api.Validate(ctx, &pluginv1.ValidateRequest{Config: i.spec.Config}); err != nil {
		return first, callError("validate the configuration", err)
	}
	if _, err := gen.api.Configure(ctx, &pluginv1.ConfigureRequest{Config: i.spec.Config}); err != nil {
		return first, callError("configure", err)
	}
	gen.health, err = attend(ctx, gen.api, i.sup.cfg.OrphanTimeout)
	if err != nil {
		return first, callError("attend", err)
	}
	if first, err = gen.health.next(ctx); err != nil {
		gen.health.close()
		return first, callError("attend", err)
	}
	return first, nil
}

// permanent marks a failure that only an operator can end.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// callError is a failed step of a start, without gRPC's prefix. A plugin that
// refuses its configuration refuses it again.
func callError(step string, err error) error {
	st := status.Convert(err)
	wrapped := fmt.Errorf("%s: %s", step, st.Message())
	if st.Code() == codes.InvalidArgument {
		return permanent{wrapped}
	}
	return wrapped
}
