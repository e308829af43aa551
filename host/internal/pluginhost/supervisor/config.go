package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-version"
	"google.golang.org/grpc"

	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/host/internal/pluginhost/hostservices"
	"github.com/pannier/pannier/host/internal/system/signing"
)

// Config is the configuration of a Supervisor.
type Config struct {
	PluginDir string // directory of the executables; need not exist
	DataDir   string // the host's data directory; the supervisor uses plugins/ below it
	Plugins   []Plugin
	// HostIP is an IP address of this host, for plugins whose targets are on it. Each gets it as HOST_IP, unless its
	// own Env has another. May be empty.
	HostIP string
	Logger hclog.Logger
	// OnEvent receives what happens to plugins. It must not block. May be nil.
	OnEvent func(Event)
	// OnPluginEvent receives the events that plugins emit: each once, those of one process in order and from one
	// goroutine. It must not block for long, nor close the supervisor. If it is nil, plugins keep their newest
	// events.
	OnPluginEvent func(PluginEvent)
	// Signing says which plugins may run. Only if it requires signatures are they checked.
	Signing signing.Policy
	// DieWithHost ends the plugins when the host ends, for whatever reason (-dev).
	DieWithHost bool
	// Confirmed is closed when the host's start has succeeded. Until then the plugins that an earlier host has left stay
	// as they are. If it is not closed before Close, that stops only the plugins that this host has started. nil: it is.
	Confirmed <-chan struct{}
	// StopPlugins makes Close stop the plugins; otherwise they keep running, and the next host finds them.
	StopPlugins bool
	// OrphanTimeout is how long a plugin keeps running without a host. Default 10 m.
	OrphanTimeout time.Duration
	// Restart says when a plugin that ended is started again.
	Restart Restart
	// StartTimeout bounds a plugin's start, from the fork to its first health report. Default 10 s.
	StartTimeout time.Duration
	// StopTimeout is how long a plugin may take to finish its calls and end. Default 10 s.
	StopTimeout time.Duration
	// DrainTimeout is how long a replaced generation may take to finish its calls. Default 5 m.
	DrainTimeout time.Duration
	// RollbackWindow is how long after a swap a failure of the new generation brings the old binary back, and at
	// least until it has answered 20 calls, but not longer than ten times as long. Negative: never. A plugin's own
	// setting has priority. Default 30 s.
	RollbackWindow time.Duration
	// Probe checks whether a new process could take over from the one that serves. It has StartTimeout. May be
	// nil.
	Probe func(ctx context.Context, name, kind string, conn grpc.ClientConnInterface) error
	// Services are what plugins can use of the host. May be nil.
	Services Services
	// Dial returns more options of the connection to a process; they trace its calls. May be nil.
	Dial func(plugin string, generation uint64) []grpc.DialOption
}

// Services serves the processes of plugins. Package hostservices says what each method does.
type Services interface {
	Listeners(ctx context.Context, plugin, token string, wanted []Socket, open bool) (names []string, files []*os.File,
		err error)
	Adopt(ctx context.Context, plugin, token string, wanted []Socket, conn grpc.ClientConnInterface) error
	Prove(plugin, token string, wanted []Socket) error
	Release(plugin, token string) error
	Attach(plugin string, conn *grpc.ClientConn)
	Forget(plugin string) error
}

// noServices is a host that has nothing for its plugins.
type noServices struct{}

func (noServices) Listeners(context.Context, string, string, []Socket, bool) ([]string, []*os.File, error) {
	return nil, nil, nil
}

func (noServices) Adopt(context.Context, string, string, []Socket, grpc.ClientConnInterface) error {
	return nil
}
func (noServices) Prove(string, string, []Socket) error { return nil }
func (noServices) Release(string, string) error         { return nil }
func (noServices) Attach(string, *grpc.ClientConn)      {}
func (noServices) Forget(string) error                  { return nil }

// Socket is a listening socket that the host opens for a plugin.
type Socket = hostservices.Socket

// Restart is the backoff between two starts; default 1 s, 60 s, 60 s.
type Restart = managed.Restart

// Plugin is the configuration of one plugin, from its plugin "NAME" block. A plugin without a block runs with the
// defaults.
type Plugin struct {
	Name string
	Args []string
	Env  []string // KEY=value, in addition to the host's PATH, HOME, LANG and TZ, and to HOST_IP
	User string   // default: the host's user
	// Group that the plugin runs as. Default: the user's.
	Group  string
	Limits Limits
	// Door is true if it is configured as a front door, and Listen are its listening sockets: another process is started
	// when they change.
	Door   bool
	Listen []Socket
	// Config is the body of the config block as a JSON object. Default: {}.
	Config []byte
	// Where is the place of the config block, or else of the whole, as FILE:LINE, for messages; may be empty.
	Where string
	// Checksum that the executable must have: "sha256:" and 64 hex digits. Empty: any.
	Checksum string
	// Version is a constraint on the version that the plugin reports, such as "~> 1.2".
	Version string
	// RollbackWindow overrides Config.RollbackWindow. 0: no override.
	RollbackWindow time.Duration
	// KeepVersions is how many copies that served are kept, the one that serves included: at least 2. Default 3.
	KeepVersions int
}

const defaultKeepVersions = 3

// goodName matches a valid plugin name. The name becomes part of paths.
var goodName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}$`) })

func (c Config) withDefaults() Config {
	c.OrphanTimeout, c.DrainTimeout = cmp.Or(c.OrphanTimeout, 10*time.Minute), cmp.Or(c.DrainTimeout, 5*time.Minute)
	c.StartTimeout, c.StopTimeout = cmp.Or(c.StartTimeout, 10*time.Second), cmp.Or(c.StopTimeout, 10*time.Second)
	c.RollbackWindow = cmp.Or(c.RollbackWindow, 30*time.Second)
	if c.Services == nil {
		c.Services = noServices{}
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if !filepath.IsAbs(c.DataDir) || !filepath.IsAbs(c.PluginDir) {
		errs = append(errs, fmt.Errorf("data and plugin directory must be absolute: %q, %q", c.DataDir, c.PluginDir))
	}
	seen := map[string]bool{}
	for _, p := range c.Plugins {
		if err := p.validate(); err != nil {
			errs = append(errs, fmt.Errorf("plugin %q: %w", p.Name, err))
		}
		if seen[p.Name] {
			errs = append(errs, fmt.Errorf("plugin %q is configured twice", p.Name))
		}
		seen[p.Name] = true
	}
	return errors.Join(errs...)
}

func (p Plugin) validate() error {
	if !goodName().MatchString(p.Name) {
		return errors.New("the name must be 1 to 64 letters, digits, - and _")
	}
	if _, err := p.checksum(); err != nil {
		return err
	}
	if p.Version != "" {
		if _, err := version.NewConstraint(p.Version); err != nil {
			return fmt.Errorf("version: %w", err)
		}
	}
	return nil
}

// checksum returns the hex digits of Checksum, or "" if there is none.
func (p Plugin) checksum() (string, error) {
	if p.Checksum == "" {
		return "", nil
	}
	sum, ok := strings.CutPrefix(strings.ToLower(p.Checksum), "sha256:")
	if !ok || !managed.IsSum(sum) {
		return "", fmt.Errorf("checksum: want sha256: and 64 hex digits, got %q", p.Checksum)
	}
	return sum, nil
}

// checkVersion checks the version that the plugin reports against the constraint.
func (p Plugin) checkVersion(got string) error {
	v, err := version.NewSemver(got)
	if err != nil {
		return fmt.Errorf("the plugin reports that its version is %q: %w", got, err)
	}
	if p.Version == "" {
		return nil
	}
	want, err := version.NewConstraint(p.Version)
	if err != nil {
		return fmt.Errorf("version: %w", err)
	}
	if !want.Check(v) {
		return fmt.Errorf("the plugin's version is %s, the configuration wants %s", got, p.Version)
	}
	return nil
}
