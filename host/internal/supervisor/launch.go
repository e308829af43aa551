package supervisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/host/internal/process"
	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
)

// permanent marks a failure that only an operator can end.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// launch starts a new process of the plugin and brings it up. When it fails,
// nothing of the process is left.
func (i *instance) launch(parent context.Context) (gen *generation, err error) {
	checksum, err := i.spec.checksum()
	if err != nil {
		return nil, permanent{err}
	}
	bin, unpin, err := i.sup.store.add(i.file, i.name, checksum)
	if err != nil {
		if errors.Is(err, errChecksum) {
			err = permanent{err}
		}
		return nil, err
	}
	defer unpin()

	ctx, cancel := context.WithTimeout(parent, i.sup.cfg.StartTimeout)
	defer cancel()
	logged := fileSize(i.logPath)
	run := newRunner()
	client := i.newClient(bin, run)
	defer func() {
		if gen != nil {
			return
		}
		// Also when something panicked: whatever was started must not stay.
		_ = run.Kill(context.WithoutCancel(parent))
		client.Kill()
		err = errors.Join(err, i.clear(parent, failedStop))
	}()
	aborted := context.AfterFunc(ctx, run.abort)
	gen, err = i.connect(ctx, client, run)
	if !aborted() {
		if gen != nil {
			gen.health.close()
		}
		gen, err = nil, i.late(ctx, err)
	}
	if err != nil {
		_ = run.Kill(context.WithoutCancel(parent)) // clear sees what this could not end
		return nil, i.explain(err, run, logged)
	}
	return gen, nil
}

// late is the error of a start that took too long or was called off; err is how
// far it came.
func (i *instance) late(ctx context.Context, err error) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ctx.Err()
	}
	if err == nil {
		return fmt.Errorf("it is not up after %v", i.sup.cfg.StartTimeout)
	}
	return fmt.Errorf("it is not up after %v: %w", i.sup.cfg.StartTimeout, err)
}

// failedStop is what a process has to end after a start that failed.
const failedStop = time.Second

// newClient is go-plugin's client for a process that it starts.
func (i *instance) newClient(bin binary, run *pluginRunner) *goplugin.Client {
	token := process.NewToken()
	cfg := i.clientConfig(token)
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
				wire.EnvLogLevel+"="+i.log.GetLevel().String()),
			User:        i.spec.User,
			LogPath:     i.logPath,
			DieWithHost: i.sup.cfg.DieWithHost,
		}
		lastGood := i.rec.LastGood
		if i.rec.Kind != "" && i.rec.SHA256 != bin.sha {
			lastGood = i.rec.SHA256
		}
		i.rec = record{
			Format: recordFormat, Name: i.name, Generation: i.rec.Generation + 1,
			SHA256: bin.sha, LastGood: lastGood, Launch: i.launchDigest(), RunDir: dir, StartedAt: time.Now(),
		}
		run.save = func(ref process.Ref) error {
			i.rec.Process = &ref
			return i.rec.save(i.sup.dir)
		}
		return run, nil
	}
	return goplugin.NewClient(cfg)
}

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

// environment is what a plugin gets of the host's: nothing that may be a secret.
func (i *instance) environment() []string {
	var env []string
	for _, key := range []string{"PATH", "HOME", "LANG", "TZ"} {
		if v, ok := os.LookupEnv(key); ok {
			env = append(env, key+"="+v)
		}
	}
	return append(env, i.spec.Env...)
}

// launchDigest tells two ways to start a plugin apart.
func (i *instance) launchDigest() string {
	data, _ := json.Marshal([]any{i.spec.Args, i.spec.Env, i.spec.User, i.sup.cfg.DieWithHost}) // strings: cannot fail
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

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
		number: i.rec.Generation, sha: i.rec.SHA256, startedAt: i.rec.StartedAt, pid: run.proc.PID(),
		run: run, client: client, proto: proto, conn: conn,
		api: pluginv1.NewPluginServiceClient(conn), drained: make(chan struct{}),
	}
	first, err := i.bringUp(ctx, gen)
	if err != nil {
		return nil, err
	}
	// The plugin has read its key: it need not lie about any longer.
	_ = os.Remove(filepath.Join(run.runDir, "tls.pem"))
	i.rec.Address, i.rec.Kind, i.rec.Version = addr.String(), gen.kind, gen.version
	if v := client.NegotiatedVersion(); v != 0 {
		i.rec.Wire = v
	}
	if err := i.rec.save(i.sup.dir); err != nil {
		gen.health.close()
		return nil, err
	}
	i.health(first)
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

// reattach finds the process that an earlier host left and brings it up again,
// if it is what we would start now. Otherwise, and when it does not answer, it is
// stopped, and gen is nil. An error is returned if it cannot be stopped, or if
// the host closes meanwhile.
func (i *instance) reattach(ctx context.Context) (gen *generation, err error) {
	if i.rec.Process == nil {
		return nil, nil
	}
	gen, err = i.tryReattach(ctx)
	if err == nil {
		return gen, nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err() // called off: the process stays for the next host
	}
	if !errors.Is(err, process.ErrGone) {
		i.log.Warn("the plugin of the previous host is replaced", "pid", i.rec.Process.PID, "reason", err)
	}
	return nil, i.clear(ctx, i.sup.cfg.StopTimeout)
}

func (i *instance) tryReattach(ctx context.Context) (gen *generation, err error) {
	ctx, cancel := context.WithTimeout(ctx, i.sup.cfg.StartTimeout)
	defer cancel()
	proc, err := process.Find(ctx, *i.rec.Process)
	if err != nil {
		return nil, err
	}
	run := newRunner()
	run.proc, run.runDir = proc, i.rec.RunDir
	defer func() {
		if gen == nil {
			run.detach()
		}
	}()
	switch {
	case i.rec.Address == "":
		return nil, errors.New("it had not come up")
	case i.rec.Launch != i.launchDigest():
		return nil, errors.New("its arguments, environment or user changed")
	}
	if err := i.sameBinary(); err != nil {
		return nil, err
	}
	cfg := i.clientConfig(i.rec.Process.Token)
	cfg.Plugins = cfg.VersionedPlugins[i.rec.Wire]
	cfg.Reattach = &goplugin.ReattachConfig{
		Protocol:        goplugin.ProtocolGRPC,
		ProtocolVersion: i.rec.Wire,
		Addr:            &net.UnixAddr{Net: "unix", Name: i.rec.Address},
		ReattachFunc:    func() (runner.AttachedRunner, error) { return run, nil },
	}
	client := goplugin.NewClient(cfg)
	aborted := context.AfterFunc(ctx, run.abort)
	gen, err = i.connect(ctx, client, run)
	if !aborted() {
		if gen != nil {
			gen.health.close()
		}
		gen, err = nil, i.late(ctx, err)
	}
	if err != nil {
		run.detach() // or Kill waits for the process
		client.Kill()
		return nil, err
	}
	return gen, nil
}

// sameBinary tells whether the running process is of the binary that a start
// would use now.
func (i *instance) sameBinary() error {
	want, err := i.spec.checksum()
	if err != nil {
		return err
	}
	if want == "" {
		if want, err = hashFile(i.file); err != nil {
			return nil //nolint:nilerr // the file is gone or unreadable: better what runs than nothing
		}
	}
	if want != i.rec.SHA256 {
		return errors.New("its executable changed")
	}
	return nil
}

// clear makes sure that nothing of the recorded process is left, and forgets it.
// No start may be tried before it has succeeded. It does not end with ctx.
func (i *instance) clear(ctx context.Context, grace time.Duration) error {
	if i.rec.Process == nil {
		return removeRunDir(i.rec.RunDir)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	proc, err := process.Find(ctx, *i.rec.Process)
	switch {
	case err == nil:
		err = proc.Stop(ctx)
	case errors.Is(err, process.ErrGone):
		err = process.Clean(ctx, *i.rec.Process)
	}
	if err != nil {
		return fmt.Errorf("end the process of plugin %q: %w", i.name, err)
	}
	if err := removeRunDir(i.rec.RunDir); err != nil {
		return fmt.Errorf("remove the socket of plugin %q: %w", i.name, err)
	}
	i.rec.Process, i.rec.RunDir, i.rec.Address = nil, "", ""
	return i.rec.save(i.sup.dir)
}

// explain adds to the error of a start how the process ended, if it did, and what
// it printed last.
func (i *instance) explain(err error, run *pluginRunner, logged int64) error {
	if run.proc == nil {
		return err
	}
	if run.ownEnd != "" {
		err = fmt.Errorf("the process ended: %s: %w", run.ownEnd, err)
	}
	if words := lastWords(i.logPath, logged); words != "" {
		err = fmt.Errorf("%w (it printed: %s)", err, words)
	}
	return err
}
