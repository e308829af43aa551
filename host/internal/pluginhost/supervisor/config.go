package supervisor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-version"
	"google.golang.org/grpc"
)

// Config is what a Supervisor needs to know.
type Config struct {
	PluginDir string // executables; need not exist
	DataDir   string // the host's: plugins/ below it is the supervisor's
	Plugins   []Plugin
	Logger    hclog.Logger
	// OnEvent is told what happens to plugins. It must not block. May be nil.
	OnEvent func(Event)
	// OnPluginEvent is told what plugins say that happens in them: each event once, those
	// of one process in their order, from one goroutine a process. It must not block for
	// long, nor close the supervisor. May be nil: then plugins keep their newest events.
	OnPluginEvent func(PluginEvent)
	// DieWithHost ends the plugins with the host, however it ends (-dev).
	DieWithHost bool
	// StopPlugins ends the plugins in Close; otherwise they run on, to be found by
	// the next host.
	StopPlugins bool
	// OrphanTimeout is how long a plugin goes on without a host. Default 10 m.
	OrphanTimeout time.Duration
	// Restart says when a plugin that ended is started anew.
	Restart Restart
	// StartTimeout bounds a plugin's start, from its process to its first health.
	// Default 10 s.
	StartTimeout time.Duration
	// StopTimeout is what a plugin has to end its calls and itself. Default 10 s.
	StopTimeout time.Duration
	// DrainTimeout is how long a generation that was replaced may finish its calls.
	// Default 5 m.
	DrainTimeout time.Duration
	// RollbackWindow is how long after a swap a failure of the new generation brings the
	// old binary back, where the plugin has none of its own. Default 1 m.
	RollbackWindow time.Duration
	// Probe asks a process that is to take over whether it can, beside the one that
	// serves. It has StartTimeout. May be nil.
	Probe func(ctx context.Context, name, kind string, conn grpc.ClientConnInterface) error
}

// Restart is the backoff between two starts: from Min, doubled each time up to
// Max, with jitter, and reset once a plugin has run for Stable.
type Restart struct {
	Min, Max, Stable time.Duration // default 1 s, 60 s, 60 s
}

// Plugin is the configuration of one plugin, a plugin "NAME" block. A plugin
// without one runs with all defaults.
type Plugin struct {
	Name string
	Args []string
	Env  []string // KEY=value, besides PATH, HOME, LANG and TZ of the host
	User string   // default: the host's
	// Group that it runs as; default: the user's.
	Group  string
	Limits Limits
	// Config is the body of the config block as a JSON object.
	Config []byte
	// Checksum that the executable must have: "sha256:" and 64 hex digits.
	Checksum string
	// Version constraint on what the plugin says of itself, such as "~> 1.2".
	Version string
	// RollbackWindow is the plugin's own; 0: Config's.
	RollbackWindow time.Duration
}

// goodName is what a plugin's name, and so its file's, may be: it becomes part of
// paths.
var goodName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}$`)

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	def(&c.OrphanTimeout, 10*time.Minute)
	def(&c.Restart.Min, time.Second)
	def(&c.Restart.Max, time.Minute)
	def(&c.Restart.Stable, time.Minute)
	def(&c.StartTimeout, 10*time.Second)
	def(&c.StopTimeout, 10*time.Second)
	def(&c.DrainTimeout, 5*time.Minute)
	def(&c.RollbackWindow, time.Minute)
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
	if !goodName.MatchString(p.Name) {
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

var hexSum = regexp.MustCompile(`^[0-9a-f]{64}$`)

// checksum is the hex digits of Checksum, or "" where there is none.
func (p Plugin) checksum() (string, error) {
	if p.Checksum == "" {
		return "", nil
	}
	sum, ok := strings.CutPrefix(strings.ToLower(p.Checksum), "sha256:")
	if !ok || !hexSum.MatchString(sum) {
		return "", fmt.Errorf("checksum: want sha256: and 64 hex digits, got %q", p.Checksum)
	}
	return sum, nil
}

// checkVersion tells whether a plugin's own version is one that is wanted.
func (p Plugin) checkVersion(got string) error {
	v, err := version.NewSemver(got)
	if err != nil {
		return fmt.Errorf("the plugin says that its version is %q: %w", got, err)
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
