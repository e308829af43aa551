package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-version"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/host/internal/managed"
	client "github.com/pannier/pannier/host/internal/managed/goplugin"
	"github.com/pannier/pannier/host/internal/pluginhost/hostservices"
	"github.com/pannier/pannier/host/internal/system/process"
	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
)

// transport starts and reaches the processes of a plugin.
type transport struct{ *instance }

// Start starts a process and brings it up.
func (i transport) Start(ctx context.Context, p *managed.Process, bin managed.Binary, fork func(process.Spec) error,
) (managed.Conn, error) {
	token := process.NewToken()
	// One that is only verified opens no sockets.
	sockets, files, err := i.sup.cfg.Services.Listeners(ctx, i.name, token, i.spec.Listen, i.path == "")
	if err != nil {
		return nil, managed.NewNotTried(err) // which says nothing about the binary
	}
	cfg := i.clientConfig(token, p.Run.Number)
	cfg.StartTimeout = i.sup.cfg.StartTimeout
	cfg.SkipHostEnv = true
	cfg.UnixSocketConfig = &goplugin.UnixSocketConfig{TempDir: i.sup.runDir}
	path := bin.Path
	if debuggedAt(i.spec) != "" {
		if path, err = os.Executable(); err != nil { // passes the calls on, whatever the plugin is written with
			return nil, managed.NewNotTried(err)
		}
	}
	c, err := client.Start(ctx, p, cfg, func(env []string) (process.Spec, error) {
		p.Run.Settings = i.settingsDigest()
		bundle := filepath.Join(p.Run.Dir, "tls.pem")
		return process.Spec{
			Token: token,
			Path:  path,
			Args:  i.spec.Args,
			Env: append(append(i.environment(), env...),
				wire.EnvTLSBundle+"="+bundle,
				wire.EnvLogLevel+"="+i.log.GetLevel().String(),
				wire.EnvListeners+"="+strings.Join(sockets, ",")),
			Files:       files,
			User:        i.spec.User,
			Group:       i.spec.Group,
			NoNewPrivs:  true,
			Limits:      i.spec.limits(),
			DieWithHost: i.sup.cfg.DieWithHost,
		}, i.issue(token, p.Run.Dir, bundle)
	}, fork)
	if err != nil {
		if p.Run.Process == nil { // nothing was started, and nothing will end
			err = errors.Join(err, i.sup.cfg.Services.Release(i.name, token))
		}
		return nil, err
	}
	return i.connected(ctx, p, c, i.binaries.promised)
}

// Reattach brings a process of an earlier host up again, with the configuration that it has: if that is another one
// now, a new process takes over.
func (i transport) Reattach(ctx context.Context, p *managed.Process) (managed.Conn, error) {
	if s, ok := i.rec.Settings[p.Run.SHA256]; ok {
		i.spec = i.wanted.with(s)
	}
	if err := i.binaries.checkAllowed(p.Run.SHA256); err != nil {
		return nil, err
	}
	c, err := client.Reattach(ctx, p, i.clientConfig(p.Run.Process.Token, p.Run.Number))
	if err != nil {
		return nil, err
	}
	conn, err := i.connected(ctx, p, c, nil)
	if err == nil {
		sockets := slices.Concat(i.spec.Listen, i.wanted.Listen)
		err = i.sup.cfg.Services.Adopt(ctx, i.name, p.Run.Process.Token, sockets, c.Conn)
		if err != nil {
			conn.Close()
			return nil, err
		}
	}
	return conn, err
}

// connected makes a generation of a process that has done the handshake, and brings it up.
func (i transport) connected(ctx context.Context, p *managed.Process, c *client.Client, promised *version.Version,
) (managed.Conn, error) {
	gen := &generation{
		Process: p, Users: managed.NewUsers(), i: i.instance, client: c, conn: c.Conn,
		api: pluginv1.NewPluginServiceClient(c.Conn), outcomes: newOutcomes(),
	}
	i.sup.cfg.Services.Attach(i.name, gen.conn)
	gen.abandoned, gen.abandon = context.WithCancel(context.WithoutCancel(ctx))
	var err error
	if gen.firstHealth, err = gen.bringUp(ctx, promised); err != nil {
		if !p.Found {
			_ = p.Kill(context.WithoutCancel(ctx))
		}
		c.Close()
		return nil, err
	}
	// The plugin has read its key: remove the file.
	_ = os.Remove(filepath.Join(p.Run.Dir, "tls.pem"))
	p.Run.Address = c.Address()
	return gen, nil
}

// Move lets callers use another generation. The events of both are read while both exist.
func (i transport) Move(ctx context.Context, from, to *managed.Process, swap *Swap, grace *time.Duration) error {
	old, next := of(from), of(to)
	if err := i.sup.cfg.Services.Prove(i.name, to.Run.Process.Token, i.spec.Listen); err != nil {
		return managed.NewNotTried(err)
	}
	if old != nil && swap.Canary == 0 {
		next.outcomes.before = old.outcomes.tallies()
		if swap.Rollback || swap.Restart { // not to be compared with what it replaces
			next.outcomes.before = old.outcomes.before
		}
		if err := i.endCanary(ctx, next, next.describe()+" has taken over", grace); err != nil {
			i.log.Error("the record of a canary could not be written", "error", err)
		}
	}
	i.current.Store(next)
	if next.events == nil { // a canary has one
		next.events = i.follow(ctx, next.conn, to.Run, to.Done())
	}
	if old != nil {
		old.Retire()
		swap.Carried = old.Count()
	}
	return nil
}

// Lost takes a generation away from callers.
func (i transport) Lost(ctx context.Context, p *managed.Process, why error) {
	end := "the process that serves was lost"
	if why == nil {
		end = "the agent stopped"
	}
	if err := i.endCanary(ctx, of(p), end, nil); err != nil {
		i.log.Error("the record of a canary could not be written", "error", err)
	}
	i.current.Store(nil)
	of(p).Retire()
	if why != nil {
		i.set("", "", func(s *Status) { s.State, s.LastError = BackingOff, why.Error() })
	}
}

// issue writes the TLS bundle of a new process.
func (i transport) issue(token, dir, path string) error {
	bundle, err := i.sup.authority.Issue(serverName(token))
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, bundle, 0o600); err != nil {
		return fmt.Errorf("write the plugin's TLS bundle: %w", err)
	}
	return chown(i.spec.User, dir, path)
}

// environment returns the part of the host's environment that a plugin gets: nothing that may be a secret.
func (i transport) environment() []string {
	var env []string
	for _, key := range []string{"PATH", "HOME", "LANG", "TZ"} {
		if v, ok := os.LookupEnv(key); ok {
			env = append(env, key+"="+v)
		}
	}
	if ip := i.sup.cfg.HostIP; ip != "" {
		env = append(env, "HOST_IP="+ip)
	}
	return append(env, i.spec.Env...) // the last one of a name counts
}

// clientConfig is the configuration that starting and reattaching share.
func (i transport) clientConfig(token string, generation uint64) *goplugin.ClientConfig {
	cfg := &goplugin.ClientConfig{
		HandshakeConfig:  wire.Handshake,
		VersionedPlugins: wire.Plugins(nil),
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		TLSConfig:        i.sup.authority.ClientTLS(serverName(token)),
		// go-plugin's client cannot be interrupted while it connects.
		GRPCDialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 50 * time.Millisecond, Multiplier: 2, Jitter: 0.2,
				MaxDelay: time.Second,
			},
			MinConnectTimeout: min(connectTimeout, i.sup.cfg.StartTimeout/2),
		})},
		SyncStdout: logWriter(i.logPath),
		SyncStderr: logWriter(i.logPath),
		// The instance reports what go-plugin would log.
		Logger: hclog.NewNullLogger(),
	}
	if i.sup.cfg.Dial != nil {
		cfg.GRPCDialOptions = append(cfg.GRPCDialOptions, i.sup.cfg.Dial(i.name, generation)...)
	}
	return cfg
}

// logWriter appends to a plugin's log what go-plugin carries over the connection: the output of a plugin that does not
// write it to the log itself, as sdk.Main does.
type logWriter string

// Write implements io.Writer.
func (w logWriter) Write(p []byte) (n int, err error) {
	log, err := os.OpenFile(string(w), os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	return log.Write(p)
}

// connectTimeout bounds connecting to a plugin's socket, including TLS.
const connectTimeout = 3 * time.Second

// serverName returns the name in the certificate of one process of a plugin.
func serverName(token string) string { return strings.ToLower(token) + ".plugin.pannier" }

// bringUp reads a connected plugin's info, configures it if it is new, and opens its health stream.
func (g *generation) bringUp(ctx context.Context, promised *version.Version) (first health, err error) {
	i := g.i
	info, err := g.api.Info(ctx, &pluginv1.InfoRequest{})
	if err != nil {
		return first, callError("info", err)
	}
	if info.GetKind() == "" {
		return first, managed.NewPermanent(errors.New("info: the plugin does not report its kind"))
	}
	if err := errors.Join(i.spec.checkVersion(info.GetVersion()), checkPromised(promised, info.GetVersion())); err != nil {
		return first, managed.NewPermanent(err)
	}
	g.Run.Kind, g.Run.Version = info.GetKind(), info.GetVersion()
	if err := hostservices.Admit(i.spec.Door, g.Run.Kind); err != nil {
		return first, managed.NewPermanent(err)
	}
	g.identity = identityOf(g.Run.Kind, info.GetName(), g.Run.SHA256)
	i.rec.is(g.Run.SHA256, g.identity)
	if err := i.claim(ctx, g.identity); err != nil {
		return first, err
	}
	if g.Run.Address == "" { // otherwise it has come up before, and keeps the configuration that it has
		config := i.spec.Config
		if len(config) == 0 {
			config = []byte("{}")
		}
		if _, err := g.api.Validate(ctx, &pluginv1.ValidateRequest{Config: config}); err != nil {
			return first, callError("validate the configuration", err)
		}
		if _, err := g.api.Configure(ctx, &pluginv1.ConfigureRequest{Config: config}); err != nil {
			return first, callError("configure", err)
		}
	}
	g.health, err = openHealthStream(ctx, g.api, i.sup.cfg.OrphanTimeout)
	if err != nil {
		return first, callError("attend", err)
	}
	if first, err = g.health.next(ctx); err != nil {
		g.health.close()
		return first, callError("attend", err)
	}
	return first, nil
}

// checkPromised checks the version that the plugin reports against the one that its signature or its file's name
// promises: an older release must not come back as a newer one. nil promises nothing.
func checkPromised(promised *version.Version, got string) error {
	if promised == nil {
		return nil
	}
	if v, err := version.NewSemver(got); err != nil || v.Compare(promised) != 0 {
		return fmt.Errorf("the plugin's version is %s, and its signature or file is for %s: install it under its own version",
			got, promised)
	}
	return nil
}

// callError is a failed step of a start, without gRPC's prefix. InvalidArgument is permanent: a plugin that
// refuses its configuration would refuse it again.
func callError(step string, err error) error {
	st := status.Convert(err)
	wrapped := fmt.Errorf("%s: %s", step, st.Message())
	if st.Code() == codes.InvalidArgument {
		return managed.NewPermanent(wrapped)
	}
	return wrapped
}
