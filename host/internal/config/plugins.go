package config

import (
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/dustin/go-humanize"
	"github.com/hashicorp/go-version"
	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/system/signing"
	"github.com/pannier/pannier/internal/trusted"
)

var checksumForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^sha256:[0-9a-f]{64}$`) })

func (l *loader) pluginBlocks(s *section) {
	seen := map[string]bool{}
	for _, block := range s.content.Blocks.OfType("plugin") {
		name := block.Labels[0]
		in := s.inner(block, fields{
			attrs:  []string{"args", "user", "group", "checksum", "version", "rollback_window", "keep_versions", "state_limit"},
			blocks: []string{"config", "limits", "api"}, labelled: []string{"listen"}, maps: []string{"env"},
		})
		if !l.label(in, block, name, seen) {
			continue
		}
		p := l.plugins[name]
		if p == nil {
			p = &Plugin{Name: name, RollbackWindow: defaultRollbackWindow, KeepVersions: defaultKeepVersions}
			l.plugins[name] = p
		}
		in.read(keys{
			"args": &p.Args, "user": &p.User, "group": &p.Group, "checksum": checksum(&p.Checksum),
			"keep_versions": number(minKeepVersions, math.MaxInt32, &p.KeepVersions), "state_limit": capacity(&p.StateLimit),
		})
		if in.has("state_limit") && (p.StateLimit < minState || p.StateLimit > maxState) {
			in.fail("state_limit", "must be from %s to %s", humanize.IBytes(minState), humanize.IBytes(maxState))
		}
		readEnvironment(in, &p.Env, func(name string) string {
			if strings.HasPrefix(name, "PANNIER_") || strings.HasPrefix(name, "PLUGIN_") {
				return name + ": variables that begin with PANNIER_ or PLUGIN_ are the agent's"
			}
			return ""
		})
		readLimits(in, &p.Limits)
		if in.str("version", &p.Version) && p.Version != "" {
			if _, err := version.NewConstraint(p.Version); err != nil {
				in.fail("version", "%q is no constraint such as %q", p.Version, "~> 1.2")
			}
		}
		in.durationOrOff("rollback_window", &p.RollbackWindow, true)
		l.frontend(in, p)
		config := in.one("config")
		switch {
		case config != nil:
			p.Config, p.Where = in.freeForm("config", config), place(config.DefRange)
		case p.Config == nil:
			p.Where = place(block.DefRange)
		}
	}
}

// readEnvironment reads the variables of a process. refused explains why it cannot have one; empty: it can.
func readEnvironment(s *section, dst *map[string]string, refused func(name string) string) {
	env := s.texts("env")
	for name := range env {
		if why := refused(name); why != "" {
			s.fail("env", "%s", why)
		}
		if !envName().MatchString(name) {
			s.fail("env", "%q is no name of a variable", name)
		}
	}
	if env != nil {
		*dst = env
	}
}

// readSigning reads the plugin_signing block. Relative paths of keys start at dir.
func readSigning(s *section, dir string, dst *signing.Policy) {
	policy, given := signing.Policy{Required: true}, []string(nil)
	in := s.block("plugin_signing", keys{"require_signature": &policy.Required, "keys": &given})
	if in == nil {
		return
	}
	*dst = policy
	for _, text := range given {
		key, err := readSigningKey(dir, text)
		if err != nil {
			in.fail("keys", "%v", err)
			continue
		}
		dst.Keys = append(dst.Keys, key)
	}
	if len(given) == 0 {
		in.fail("keys", "names no key: give the line that begins with RW, or the path, of a minisign public key")
	}
}

// readSigningKey reads a key that is given itself or by the path of its file.
func readSigningKey(dir, text string) (signing.Key, error) {
	if key, err := signing.ParseKey(text); err == nil {
		return key, nil
	}
	path := text
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	path = absolute(path)
	if err := trusted.File(path); err != nil {
		return signing.Key{}, fmt.Errorf("%q is neither a minisign public key nor the path of one: %w", text, err)
	}
	content, err := readFile(path)
	if err != nil {
		return signing.Key{}, err
	}
	key, err := signing.ParseKey(string(content))
	if err != nil {
		return signing.Key{}, fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

// place is FILE:LINE.
func place(at hcl.Range) string { return fmt.Sprintf("%s:%d", at.Filename, at.Start.Line) }

// pluginName reads the name of a plugin; empty: the default.
func pluginName(dst *string) func(*section, string) {
	return func(s *section, name string) {
		if s.str(name, dst) && *dst != "" {
			s.id(name, *dst)
		}
	}
}

func checksum(dst *string) func(*section, string) {
	return func(s *section, name string) {
		if s.str(name, dst) && *dst != "" && !checksumForm().MatchString(*dst) {
			s.fail(name, "%q is not sha256: and 64 hex digits", *dst)
		}
	}
}

// readLimits reads the limits block of a plugin or driver.
func readLimits(s *section, dst *process.Limits) {
	in := s.block("limits", keys{
		"memory": capacity(&dst.Memory), "open_files": number(minOpenFiles, math.MaxInt32, &dst.OpenFiles),
		"processes": number(minProcesses, math.MaxInt32, &dst.Processes),
	})
	if in != nil && in.has("memory") && dst.Memory < minMemory {
		in.fail("memory", "must be at least %s", humanize.IBytes(minMemory))
	}
}

// The least that an idle plugin needs.
const (
	minMemory    = 16 << 20
	minOpenFiles = 64
	minProcesses = 32
)

const (
	defaultKeepVersions = 3
	// minKeepVersions: the one that serves, and the one to go back to.
	minKeepVersions = 2
	// Each write reads the whole state.
	minState, maxState = 64 << 10, 16 << 20
)

// label checks a block's name, which may be used once per file.
func (l *loader) label(in *section, block *hcl.Block, name string, seen map[string]bool) bool {
	if err := claim.CheckID(name); err != nil {
		in.problems.add(block.DefRange, "%s: name %v", in.path, err)
		return false
	}
	if seen[name] {
		in.problems.add(block.DefRange, "%s: block given twice in this file", in.path)
		return false
	}
	seen[name] = true
	l.agent.Places[fmt.Sprintf("%s %q", block.Type, name)] = place(block.DefRange)
	return true
}

var (
	driverFields = fields{
		attrs: []string{
			"type", "plugin", "endpoint", "command", "user", "checksum", "overlap", "mount_dir", "stage_publish_base_dir",
			"health_timeout", "settle_time", "allowed_mount_flags",
		},
		blocks: []string{"limits", "timeout", "controller", "ephemeral_volumes"}, maps: []string{"env"},
		refused: map[string]string{"ephemeral": "write ephemeral_volumes {}"},
	}
	controllerFields = fields{
		attrs: []string{
			"endpoint", "command", "user", "checksum",
			"overlap",
		}, blocks: []string{"limits"}, maps: []string{"env"},
	}
)

// envName is the form of a variable's name (POSIX, "Environment Variable Definition").
var envName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`) })

// driverBlocks reads the drivers of all files. All endpoints are read first, because ${endpoint} in a command is the
// final one.
func (l *loader) driverBlocks(roots []*section) {
	var blocks []*section
	var owners []*Driver
	endpoint := func(in *section, d *Driver) {
		in.eval = l.variables(driverVariables(d.ID, ""))
		in.str("endpoint", &d.Endpoint)
		blocks, owners = append(blocks, in), append(owners, d)
	}
	for _, s := range roots {
		seen := map[string]bool{}
		for _, block := range s.content.Blocks.OfType("csi_driver") {
			in := s.inner(block, driverFields)
			if !l.label(in, block, block.Labels[0], seen) {
				continue
			}
			d := l.driver(block.Labels[0])
			endpoint(in, d)
			if block := in.one("controller"); block != nil {
				if d.Controller == nil {
					d.Controller = &Driver{
						ID: d.ID, Type: "controller",
						Endpoint: DefaultEndpoint(l.agent.DataDir, d.ID+"/controller"),
					}
				}
				endpoint(in.inner(block, controllerFields), d.Controller)
			}
		}
	}
	for i, in := range blocks {
		d := owners[i]
		in.eval = l.variables(driverVariables(d.ID, d.Endpoint))
		readProcess(in, d)
		if l.drivers[d.ID] != d {
			continue // a controller block
		}
		in.read(keys{
			"plugin": pluginName(&d.Plugin), "type": oneOf([]string{"node", "controller", "monolith"}, &d.Type),
			"mount_dir": absolutePath(&d.MountDir), "stage_publish_base_dir": absolutePath(&d.StagePublishBaseDir),
			"health_timeout": &d.HealthTimeout, "settle_time": &d.SettleTime, "allowed_mount_flags": &d.AllowedMountFlags,
		})
		in.block("timeout", keys{
			"stage": &d.Timeouts.Stage, "unstage": &d.Timeouts.Unstage, "publish": &d.Timeouts.Publish,
			"unpublish": &d.Timeouts.Unpublish,
		})
		if d.Controller != nil && in.has("type") && d.Type != "node" {
			in.fail("type", "is %q, and the block has a controller block: write node, or nothing", d.Type)
		}
		readEphemeralVolumes(in, &d.EphemeralVolumes)
	}
}

// readEphemeralVolumes reads the ephemeral_volumes block of a driver.
func readEphemeralVolumes(s *section, dst **EphemeralVolumes) {
	block := s.one("ephemeral_volumes")
	if block == nil {
		return
	}
	if *dst == nil {
		*dst = &EphemeralVolumes{}
	}
	in := s.inner(block, fields{attrs: []string{"namespaces"}, maps: []string{"secrets"}})
	in.strings("namespaces", &(*dst).Namespaces)
	for _, name := range (*dst).Namespaces {
		if err := claim.CheckID(name); err != nil {
			in.fail("namespaces", "%v", err)
		}
	}
	if in.has("namespaces") && len((*dst).Namespaces) == 0 {
		in.fail("namespaces", "must not be empty: leave it out for all namespaces, or leave out the block for none")
	}
	if secrets := in.texts("secrets"); secrets != nil {
		(*dst).Secrets = secrets
	}
	for name, ref := range (*dst).Secrets {
		if !strings.HasPrefix(ref, "file:///") {
			in.fail("secrets", "%s must be file:// and an absolute path, so that the secret is not in this file", name)
		}
	}
}

// readProcess reads how the process of a driver or of its controller is run.
func readProcess(s *section, d *Driver) {
	s.strings("command", &d.Command)
	if s.has("command") && len(d.Command) > 0 && !strings.HasPrefix(d.Command[0], "/") {
		s.fail("command", "the program needs an absolute path, not %q", d.Command[0])
	}
	readEnvironment(s, &d.Env, func(name string) string {
		if name == "CSI_ENDPOINT" {
			return "CSI_ENDPOINT is the endpoint: set that"
		}
		return ""
	})
	s.read(keys{"user": &d.User, "checksum": checksum(&d.Checksum), "overlap": &d.Overlap})
	readLimits(s, &d.Limits)
}

// driver returns the entry of a driver, with the defaults if it is new.
func (l *loader) driver(id string) *Driver {
	d := l.drivers[id]
	if d == nil {
		d = &Driver{
			ID: id, Type: "monolith", Endpoint: DefaultEndpoint(l.agent.DataDir, id),
			HealthTimeout: defaultHealthTimeout,
		}
		l.drivers[id] = d
	}
	return d
}

func driverVariables(id, endpoint string) map[string]cty.Value {
	vars := map[string]cty.Value{"driver": cty.ObjectVal(map[string]cty.Value{"id": cty.StringVal(id)})}
	if endpoint != "" {
		vars["endpoint"] = cty.StringVal(endpoint)
	}
	return vars
}
