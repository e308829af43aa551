package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"github.com/hashicorp/go-version"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/system/signing"
	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
)

// launch starts a new process of the plugin and brings it up. On failure nothing of the process is left. The caller
// saves the record, which then says that it is up, before it serves.
func (i *instance) launch(parent context.Context, src source) (gen *generation, err error) {
	bin, unpin, err := i.copyOf(src)
	if err != nil {
		return nil, err
	}
	defer unpin()
	i.lastTried = bin.sha

	ctx, cancel := context.WithTimeout(parent, i.sup.cfg.StartTimeout)
	defer cancel()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	logged := process.LogSize(i.logPath)
	run := newRunner()
	run.meter, run.promised = i.newMeter(giveUp), bin.version
	client, err := i.newClient(ctx, bin, run)
	if err != nil {
		return nil, err
	}
	defer func() {
		if gen != nil {
			return
		}
		// This also runs after a panic: whatever was started must not stay.
		_ = run.Kill(context.WithoutCancel(parent))
		client.Kill()
		if run.record != nil {
			err = errors.Join(err, i.clear(parent, run.record, failedStop))
		}
	}()
	aborted := context.AfterFunc(ctx, run.abort)
	gen, err = i.connect(ctx, client, run)
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		<-ctx.Done() // the process knows the deadline too and may have noticed it first
	}
	if !aborted() || ctx.Err() != nil {
		if gen != nil {
			gen.health.close()
		}
		gen, err = nil, i.late(ctx, err)
	}
	if err != nil {
		_ = run.Kill(context.WithoutCancel(parent)) // clear deals with what this could not end
		return nil, i.explain(err, run, logged)
	}
	gen.started = true
	return gen, nil
}

// copyOf makes the verified copy that a process runs from.
func (i *instance) copyOf(src source) (bin binary, unpin func(), err error) {
	checksum, err := i.spec.checksum()
	if err != nil {
		return binary{}, nil, permanent{err}
	}
	if src.path == "" {
		bin, unpin, err = i.sup.store.use(src.sha, i.name, checksum)
	} else {
		bin, unpin, err = i.sup.store.add(src.path, i.name, checksum)
	}
	switch {
	case errors.Is(err, errChecksum):
		err = permanent{err}
	case errors.Is(err, signing.ErrSignature): // which may arrive after the file
		err = notCopied{permanent{err}}
	case err != nil:
		err = notCopied{err}
	}
	return bin, unpin, err
}

// notCopied is a start that failed before the binary ran, because the disk is full, others may write to the file, its
// signature is missing, or the address of a listening socket is taken. That says nothing about the binary.
type notCopied struct{ error }

func (n notCopied) Unwrap() error { return n.error }

// late returns the error of a start that took too long or was cancelled; err says how far the start had come.
func (i *instance) late(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); isOverLimit(cause) {
		return cause
	}
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ctx.Err()
	}
	if err == nil {
		return fmt.Errorf("it is not up after %v", i.sup.cfg.StartTimeout)
	}
	return fmt.Errorf("it is not up after %v: %w", i.sup.cfg.StartTimeout, err)
}

// failedStop is how long a process may take to end after a failed start.
const failedStop = time.Second

// newClient makes go-plugin's client for a process that it starts.
func (i *instance) newClient(ctx context.Context, bin binary, run *pluginRunner) (*goplugin.Client, error) {
	sockets, files, err := i.listeners(ctx)
	if err != nil {
		return nil, notCopied{err} // which says nothing about the binary
	}
	token := process.NewToken()
	cfg := i.clientConfig(token, i.rec.Generation+1)
	cfg.StartTimeout = i.sup.cfg.StartTimeout
	cfg.SkipHostEnv = true
	cfg.UnixSocketConfig = &goplugin.UnixSocketConfig{TempDir: i.sup.runDir}
	cfg.RunnerFunc = func(_ hclog.Logger, cmd *exec.Cmd, dir string) (runner.Runner, error) {
		bundle := filepath.Join(dir, "tls.pem")
		if err := i.issue(token, dir, bundle); err != nil {
			_ = os.RemoveAll(dir)
			return nil, err
		}
		run.runDir = dir
		run.spec = process.Spec{
			Token: token,
			Path:  bin.path,
			Args:  i.spec.Args,
			Env: append(append(i.environment(), cmd.Env...), // cmd.Env: go-plugin's own
				wire.EnvTLSBundle+"="+bundle,
				wire.EnvLogLevel+"="+i.log.GetLevel().String(),
				wire.EnvListeners+"="+strings.Join(sockets, ",")),
			Files:       files,
			User:        i.spec.User,
			Group:       i.spec.Group,
			NoNewPrivs:  true,
			Limits:      i.spec.limits(),
			LogPath:     i.logPath,
			DieWithHost: i.sup.cfg.DieWithHost,
		}
		i.rec.Generation++
		run.record = &runRecord{
			Number: i.rec.Generation, SHA256: bin.sha, Launch: i.launchDigest(), Config: i.spec.configDigest(),
			RunDir: dir, StartedAt: time.Now(),
		}
		i.rec.Runs = append(i.rec.Runs, run.record)
		run.save = func(ref process.Ref) error {
			run.record.Process = &ref
			return i.rec.save(i.sup.dir)
		}
		return run, nil
	}
	return goplugin.NewClient(cfg), nil
}

// listeners returns the listening sockets of a new process. One that only is verified opens none.
func (i *instance) listeners(ctx context.Context) (names []string, files []*os.File, err error) {
	if i.sup.cfg.Services == nil {
		return nil, nil, nil
	}
	return i.sup.cfg.Services.Listeners(ctx, i.name, i.rec.Name == i.name)
}

// issue writes the TLS bundle of a new process.
func (i *instance) issue(token, dir, path string) error {
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
func (i *instance) environment() []string {
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
func (i *instance) clientConfig(token string, generation uint64) *goplugin.ClientConfig {
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

// connect does the handshake, or reattaches, and brings the plugin up.
func (i *instance) connect(ctx context.Context, client *goplugin.Client, run *pluginRunner) (*generation, error) {
	addr, err := client.Start()
	if err != nil {
		// go-plugin's errors have many lines
		return nil, fmt.Errorf("handshake: %s", strings.Join(strings.Fields(err.Error()), " "))
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
		name: i.name, metrics: i.sup.metrics,
		record: run.record, number: run.record.Number, sha: run.record.SHA256,
		startedAt: run.record.StartedAt, pid: run.proc.PID(),
		run: run, overLimit: run.meter.exceeded, client: client, proto: proto, conn: conn,
		api: pluginv1.NewPluginServiceClient(conn), retiring: make(chan struct{}), drained: make(chan struct{}),
		outcomes: newOutcomes(),
	}
	if i.sup.cfg.Services != nil {
		i.sup.cfg.Services.Attach(i.name, conn)
	}
	gen.abandoned, gen.abandon = context.WithCancel(context.WithoutCancel(ctx))
	if gen.firstHealth, err = i.bringUp(ctx, gen); err != nil {
		return nil, err
	}
	// The plugin has read its key: remove the file.
	_ = os.Remove(filepath.Join(run.runDir, "tls.pem"))
	run.record.Address, run.record.Kind, run.record.Version = addr.String(), gen.kind, gen.version
	if v := client.NegotiatedVersion(); v != 0 {
		run.record.Wire = v
	}
	return gen, nil
}

// bringUp reads a connected plugin's info, configures it if it is new, and opens its health stream.
func (i *instance) bringUp(ctx context.Context, gen *generation) (first health, err error) {
	info, err := gen.api.Info(ctx, &pluginv1.InfoRequest{})
	if err != nil {
		return first, callError("info", err)
	}
	if info.GetKind() == "" {
		return first, permanent{errors.New("info: the plugin does not report its kind")}
	}
	if err := i.spec.checkVersion(info.GetVersion()); err != nil {
		return first, permanent{err}
	}
	if err := checkPromised(gen.run.promised, info.GetVersion()); err != nil {
		return first, permanent{err}
	}
	gen.kind, gen.version = info.GetKind(), info.GetVersion()
	if i.sup.cfg.Services != nil {
		if err := i.sup.cfg.Services.Admit(i.name, gen.kind); err != nil {
			return first, permanent{err}
		}
	}
	gen.identity = identityOf(gen.kind, info.GetName(), gen.sha)
	i.rec.is(gen.sha, gen.identity)
	if err := i.claim(ctx, gen.identity); err != nil {
		return first, err
	}
	if gen.record.Address == "" { // otherwise it has come up before, and keeps the configuration that it has
		if err := i.configure(ctx, gen); err != nil {
			return first, err
		}
	}
	gen.health, err = openHealthStream(ctx, gen.api, i.sup.cfg.OrphanTimeout)
	if err != nil {
		return first, callError("attend", err)
	}
	if first, err = gen.health.next(ctx); err != nil {
		gen.health.close()
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

// configure gives a new process its config block.
func (i *instance) configure(ctx context.Context, gen *generation) error {
	if _, err := gen.api.Validate(ctx, &pluginv1.ValidateRequest{Config: i.spec.Config}); err != nil {
		return callError("validate the configuration", err)
	}
	if _, err := gen.api.Configure(ctx, &pluginv1.ConfigureRequest{Config: i.spec.Config}); err != nil {
		return callError("configure", err)
	}
	return nil
}

// permanent marks a failure that only an operator can correct.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// callError is a failed step of a start, without gRPC's prefix. InvalidArgument is permanent: a plugin that
// refuses its configuration would refuse it again.
func callError(step string, err error) error {
	st := status.Convert(err)
	wrapped := fmt.Errorf("%s: %s", step, st.Message())
	if st.Code() == codes.InvalidArgument {
		return permanent{wrapped}
	}
	return wrapped
}
