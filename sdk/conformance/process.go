package conformance

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
)

// process is one run of the binary, and the host's connection to it.
type process struct {
	*program
	r      *run
	client *goplugin.Client
	conn   *grpc.ClientConn
	api    pluginv1.PluginServiceClient
	server string // the name in its certificate
}

// start runs the binary and connects to it. The process ends with the check.
func (r *run) start(c *checking) (*process, error) { return r.startWith(c, nil, nil) }

// startWith is start with more variables in the environment, and files as the process's descriptors from 3 on.
func (r *run) startWith(c *checking, env []string, files []*os.File) (*process, error) {
	mark := rand.Text()
	p := &process{r: r, server: strings.ToLower(mark) + ".plugin.pannier"}
	p.program = &program{
		path: r.cfg.Binary, args: r.cfg.Args, env: append(environment(), env...), files: files, mark: mark,
		log: filepath.Join(r.dir, mark[:8]+".log"),
	}
	r.started(p)
	p.client = goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig:  wire.Handshake,
		VersionedPlugins: wire.Plugins(nil),
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		TLSConfig:        r.authority.ClientTLS(p.server),
		StartTimeout:     startTime,
		SkipHostEnv:      true,
		UnixSocketConfig: &goplugin.UnixSocketConfig{TempDir: r.dir},
		Logger:           hclog.NewNullLogger(),
		RunnerFunc:       p.prepare,
		GRPCDialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: startTime / 2}),
			grpc.WithChainUnaryInterceptor(r.heard.unary), grpc.WithChainStreamInterceptor(r.heard.stream),
		},
	})
	c.ends(p.end)
	if err := p.connect(); err != nil {
		return nil, fmt.Errorf("%s%s", strings.Join(strings.Fields(err.Error()), " "), p.lastWords())
	}
	return p, nil
}

// prepare is go-plugin's RunnerFunc.
func (p *process) prepare(_ hclog.Logger, cmd *exec.Cmd, dir string) (runner.Runner, error) {
	bundle, err := p.r.authority.Issue(p.server)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "tls.pem")
	if err := os.WriteFile(path, bundle, 0o600); err != nil {
		return nil, fmt.Errorf("write the plugin's TLS bundle: %w", err)
	}
	p.socket = dir
	p.env = append(append(p.env, cmd.Env...), wire.EnvTLSBundle+"="+path, wire.EnvLogLevel+"=trace")
	return p.program, nil
}

// environment returns the part of the host's environment that a plugin gets.
func environment() []string {
	var env []string
	for _, key := range []string{"PATH", "HOME", "LANG", "TZ"} {
		if v, ok := os.LookupEnv(key); ok {
			env = append(env, key+"="+v)
		}
	}
	return env
}

func (p *process) connect() error {
	if _, err := p.client.Start(); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	protocol, err := p.client.Client()
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	raw, err := protocol.Dispense(wire.PluginName)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	p.conn = raw.(*grpc.ClientConn) // wire.Plugins returns nothing else
	p.api = pluginv1.NewPluginServiceClient(p.conn)
	p.r.host.attach(p.conn)
	// The plugin has read the file; a host removes it too.
	return os.Remove(filepath.Join(p.socket, "tls.pem"))
}

// again opens a second connection to the process, as a restarted host does.
func (p *process) again(tlsConfig *tls.Config) (*grpc.ClientConn, error) {
	addr := p.client.ReattachConfig().Addr.String()
	return grpc.NewClient("unix:"+addr, grpc.WithTransportCredentials(credentials.NewTLS(tlsConfig)),
		grpc.WithChainUnaryInterceptor(p.r.heard.unary), grpc.WithChainStreamInterceptor(p.r.heard.stream))
}

// up starts a process and configures it with the run's configuration.
func (r *run) up(ctx context.Context, c *checking) (*process, error) {
	p, err := r.start(c)
	if err != nil {
		return nil, err
	}
	if err := p.configure(ctx, r.cfg.Config); err != nil {
		return nil, err
	}
	return p, nil
}

// up makes a check of one that works with a configured process.
func up(do func(ctx context.Context, r *run, c *checking, p *process) error,
) func(context.Context, *run, *checking) error {
	return func(ctx context.Context, r *run, c *checking) error {
		p, err := r.up(ctx, c)
		if err != nil {
			return err
		}
		return do(ctx, r, c, p)
	}
}

func (p *process) configure(ctx context.Context, config []byte) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if _, err := p.api.Validate(ctx, &pluginv1.ValidateRequest{Config: config}); err != nil {
		return fmt.Errorf("validate: %w", err)
	}
	if _, err := p.api.Configure(ctx, &pluginv1.ConfigureRequest{Config: config}); err != nil {
		return fmt.Errorf("configure: %w", err)
	}
	return nil
}

// askToStop asks the process to end, and hangs up if it waits for that.
func (p *process) askToStop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	hangUp, err := wire.Stop(ctx, p.conn)
	if err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	if hangUp {
		_ = p.conn.Close()
	}
	return nil
}

// stop asks the process to end and waits for it.
func (p *process) stop(ctx context.Context) error {
	began := time.Now()
	if err := p.askToStop(ctx); err != nil {
		return err
	}
	if !p.ended(stopTime - time.Since(began)) {
		return fmt.Errorf("it still runs %v after Stop", stopTime)
	}
	return nil
}

// end records what others could read from the process, and kills what is left of it.
func (p *process) end() {
	if p.done != nil {
		for _, pid := range p.family() {
			p.r.heard.note(fmt.Sprintf("process %d", pid), public(pid))
		}
		p.kill()
	}
	p.client.Kill()
}

// lastWords returns the end of the process's log, or why it panicked.
func (p *process) lastWords() string {
	text, _ := os.ReadFile(p.log)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for _, line := range lines {
		if strings.HasPrefix(line, "panic: ") { // a stack follows
			return fmt.Sprintf("; it printed %.300q", line)
		}
	}
	last := lines[len(lines)-1]
	if last == "" {
		return ""
	}
	return fmt.Sprintf("; its log ends with %.300q", last)
}

// envMark marks a process and what it starts, as a host does.
const envMark = "PANNIER_PROCESS_ID"

// marked returns the running processes that carry a mark, or are in the process group of leader. It ignores
// processes that started before since.
func marked(mark string, leader int, since uint64) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		s := statOf(pid)
		if s.state == "Z" || s.state == "" || s.start < since {
			continue
		}
		environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)) // unreadable: another user's, or a plugin (see sdk.Main)
		if s.group == leader || bytes.Contains(environ, []byte(envMark+"="+mark)) {
			found = append(found, pid)
		}
	}
	return found
}

// stat holds fields of /proc/PID/stat (proc(5)); empty if the process is gone.
type stat struct {
	state string
	group int
	start uint64 // in clock ticks since boot
}

func statOf(pid int) (s stat) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return s
	}
	// The name, in parentheses, may contain anything. The state is the third field.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 {
		return s
	}
	s.state = fields[0]
	s.group, _ = strconv.Atoi(fields[2])
	s.start, _ = strconv.ParseUint(fields[19], 10, 64)
	return s
}

// public returns what others may read from a process: its arguments and its environment.
func public(pid int) string {
	var out strings.Builder
	for _, name := range []string{"cmdline", "environ"} {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name)) // it may have ended
		out.Write(bytes.ReplaceAll(text, []byte{0}, []byte{'\n'}))
		out.WriteByte('\n')
	}
	return out.String()
}
