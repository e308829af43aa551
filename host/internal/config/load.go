package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/pannier/pannier/internal/trusted"
)

// Overrides are settings from outside the files; nil changes nothing.
type Overrides struct {
	Name, DataDir, PluginDir, Socket, LogLevel *string
	HTTPPort, BootstrapExpect                  *int
	Server                                     *bool
	// Join replaces retry_join; nil changes nothing.
	Join []string
}

// Source has the sources of the agent's configuration. Later ones override earlier ones: defaults, files in order,
// environment, flags.
type Source struct {
	// Paths are files, or folders whose *.hcl and *.json are read by name.
	Paths []string
	// Environment is os.LookupEnv, or a replacement in tests.
	Environment func(string) (string, bool)
	Flags       Overrides
	// BinDir is the folder of the programs and plugins; empty: the folder of the running program.
	BinDir string
	// Dev adds a socket in the data directory and a csi-local driver with the id "local".
	Dev bool
	// FreePort returns a port for health and metrics with Dev if none is given.
	FreePort func() int
	// TempDir makes the data directory with Dev if none is given.
	TempDir func() (string, error)
}

// SystemDir is where packages put the agent's configuration.
const SystemDir = "/etc/pannier"

// Installed returns the paths of an agent's configuration for another command: the given ones, or else SystemDir, if it
// is there.
func Installed(given []string) []string {
	if _, err := os.Stat(SystemDir); err == nil && len(given) == 0 {
		return []string{SystemDir}
	}
	return given
}

// Load reads, merges and checks the agent's configuration. The error is Problems.
func Load(src Source) (*Agent, error) {
	if exe, err := os.Executable(); err == nil && src.BinDir == "" {
		src.BinDir = filepath.Dir(exe)
	}
	l := &loader{
		src: src, agent: defaults(), written: map[string]hcl.Range{}, plugins: map[string]*Plugin{},
		drivers: map[string]*Driver{}, consuls: map[string]*Consul{},
	}
	l.agent.source = src
	env := l.environment()
	for _, path := range src.Paths {
		l.read(path)
	}
	l.identity(env)
	l.rest(env)
	if err := l.problems.err(); err != nil {
		return nil, err
	}
	l.complete()
	l.check()
	if err := l.problems.err(); err != nil {
		return nil, err
	}
	return l.agent, nil
}

type loader struct {
	src      Source
	agent    *Agent
	roots    []root
	plugins  map[string]*Plugin
	drivers  map[string]*Driver
	consuls  map[string]*Consul
	problems Problems
	// written are the places of what the files have, by key (section.written).
	written map[string]hcl.Range
}

// has reports whether a key was written.
func (l *loader) has(key string) bool {
	_, written := l.written[key]
	return written
}

// fail reports a problem with a key.
func (l *loader) fail(key, format string, args ...any) {
	l.failAt([]string{key}, "%s: %s", key, fmt.Sprintf(format, args...))
}

// failAt reports a problem at the first of the places that was written.
func (l *loader) failAt(places []string, format string, args ...any) {
	at := slices.IndexFunc(places, l.has)
	l.problems.add(l.written[places[max(at, 0)]], format, args...)
}

// root is one parsed file.
type root struct {
	body hcl.Body
	// dir is what relative paths in the file start from.
	dir string
}

// environment reads the agent's settings from PANNIER_* variables.
func (l *loader) environment() Overrides {
	lookup := l.src.Environment
	if lookup == nil {
		lookup = os.LookupEnv
	}
	get := func(name string) *string {
		if v, ok := lookup(name); ok && v != "" {
			return &v
		}
		return nil
	}
	env := Overrides{
		Name: get("PANNIER_NAME"), DataDir: get("PANNIER_DATA_DIR"), PluginDir: get("PANNIER_PLUGIN_DIR"),
		Socket: get("PANNIER_SOCKET"), LogLevel: get("PANNIER_LOG_LEVEL"),
	}
	if port := get("PANNIER_HTTP_PORT"); port != nil {
		n, err := strconv.Atoi(*port)
		if err != nil {
			l.problems = append(l.problems, Problem{Text: fmt.Sprintf("PANNIER_HTTP_PORT: a number is required, not %q", *port)})
		}
		env.HTTPPort = &n
	}
	return env
}

// read parses a file, or each file of a folder.
func (l *loader) read(path string) {
	info, err := os.Stat(path)
	if err != nil {
		l.problems = append(l.problems, unreadable(path, err))
		return
	}
	files := []string{path}
	if info.IsDir() {
		if err := trusted.Dir(absolute(path)); err != nil {
			l.problems = append(l.problems, unreadable(path, err))
			return
		}
		files = nil
		entries, err := os.ReadDir(path)
		if err != nil {
			l.problems = append(l.problems, unreadable(path, err))
		}
		for _, entry := range entries {
			name := entry.Name()
			if ext := filepath.Ext(name); (ext == ".hcl" || ext == ".json") && name[0] != '.' {
				files = append(files, filepath.Join(path, name))
			}
		}
	}
	for _, file := range files {
		if err := trusted.File(absolute(file)); err != nil {
			l.problems = append(l.problems, unreadable(file, err))
			continue
		}
		text, err := readFile(file)
		if err != nil {
			l.problems = append(l.problems, unreadable(file, err))
			continue
		}
		if body := parse(file, text, &l.problems); body != nil {
			l.roots = append(l.roots, root{body: body, dir: filepath.Dir(file)})
		}
	}
}

func unreadable(path string, err error) Problem {
	if refused := (*trusted.Error)(nil); errors.As(err, &refused) {
		return Problem{File: path, Text: "is not used: " + err.Error()}
	}
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		err = pathErr.Err
	}
	return Problem{File: path, Text: "cannot be read: " + err.Error()}
}

var rootFields = fields{
	attrs: []string{
		"name", "datacenter", "data_dir", "plugin_dir", "socket", "socket_group", "bind_addr",
		"log_level", "log_format", "leave_plugins_on_stop", "secrets_dir",
		"advertise_addr", "retry_join", "encrypt", "encrypt_file",
	},
	blocks: []string{
		"ports", "server", "gc", "tls", "acl", "audit", "autopilot", "ledger_encryption", "plugin_signing", "traces",
		"metrics",
	},
	labelled: []string{"plugin", "csi_driver", "identity"},
	named:    []string{"consul"},
}

// identity reads the values that others may interpolate.
func (l *loader) identity(env Overrides) {
	a := l.agent
	// rest reports unknown keys: problems of opening a file are dropped here.
	sections := make([]*section, len(l.roots))
	for i, r := range l.roots {
		var ignored Problems
		sections[i] = open(r.body, "", rootFields, nil, &ignored)
		sections[i].problems, sections[i].written = &l.problems, l.written
		sections[i].read(keys{"name": &a.Name, "datacenter": &a.Datacenter, "data_dir": file(r.dir, &a.DataDir)})
	}
	for _, o := range []Overrides{env, l.src.Flags} {
		set(&a.Name, o.Name)
		setPath(&a.DataDir, o.DataDir)
	}
	if a.Name == "" {
		// Without a hostname, check asks for a name.
		a.Name, _ = os.Hostname()
	}
	l.dataDir()
	for i, r := range l.roots {
		sections[i].eval = l.variables(nil)
		sections[i].file("plugin_dir", r.dir, &a.PluginDir)
	}
	for _, o := range []Overrides{env, l.src.Flags} {
		setPath(&a.PluginDir, o.PluginDir)
	}
	if a.PluginDir == "" {
		a.PluginDir = firstThatIs(filepath.Join(l.src.BinDir, "plugins"), systemPluginDir)
	}
}

// dataDir chooses the data directory if none is given.
func (l *loader) dataDir() {
	switch {
	case l.agent.DataDir != "":
	case l.src.Dev && l.src.TempDir != nil:
		dir, err := l.src.TempDir()
		if err != nil {
			l.problems = append(l.problems, Problem{Text: fmt.Sprintf("data_dir: make a temporary one: %v", err)})
		}
		l.agent.DataDir, l.agent.Dev = dir, true
	default:
		l.agent.DataDir = DefaultDataDir
	}
}

// rest reads everything else, file by file, so that later files override earlier ones.
func (l *loader) rest(env Overrides) {
	a := l.agent
	if l.src.Dev {
		a.Socket = filepath.Join(a.DataDir, "pannier.sock")
		a.LeavePluginsOnStop = false
		if l.src.FreePort != nil {
			a.HTTPPort = l.src.FreePort()
		}
	}
	sections := make([]*section, len(l.roots))
	for i, r := range l.roots {
		s := open(r.body, "", rootFields, l.variables(nil), &l.problems)
		s.written, sections[i] = l.written, s
		s.read(keys{
			"socket": file(r.dir, &a.Socket), "socket_group": &a.SocketGroup, "bind_addr": &a.BindAddr,
			"log_level": oneOf(logLevels, &a.LogLevel), "log_format": oneOf([]string{"text", "json"}, &a.LogFormat),
			"leave_plugins_on_stop": &a.LeavePluginsOnStop, "secrets_dir": file(r.dir, &a.SecretsDir),
		})
		s.block("ports", keys{
			"http": number(0, 65535, &a.HTTPPort), "rpc": number(0, 65535, &a.RPCPort), "serf": number(0, 65535, &a.SerfPort),
			"min_dynamic_port": number(1, 65535, &a.MinDynamicPort), "max_dynamic_port": number(1, 65535, &a.MaxDynamicPort),
			"max_per_namespace": number(1, 65535, &a.PortsQuota),
		})
		s.block("gc", keys{
			"interval": &a.GC.Interval, "claim_threshold": &a.GC.ClaimThreshold, "driver_threshold": &a.GC.DriverThreshold,
			"workload_threshold": &a.GC.WorkloadThreshold, "node_threshold": &a.GC.NodeThreshold,
		})
		l.clusterBlocks(s, r.dir)
		l.pluginBlocks(s)
		readSigning(s, r.dir, &a.PluginSigning)
		l.consulBlocks(s, r.dir)
		l.identityBlocks(s)
	}
	l.driverBlocks(sections)
	for _, o := range []Overrides{env, l.src.Flags} {
		setPath(&a.Socket, o.Socket)
		set(&a.LogLevel, o.LogLevel)
		set(&a.HTTPPort, o.HTTPPort)
		l.clusterFlags(o)
	}
}

// variables returns what expressions may interpolate, including more.
func (l *loader) variables(more map[string]cty.Value) *hcl.EvalContext {
	vars := map[string]cty.Value{
		"node": cty.ObjectVal(map[string]cty.Value{
			"name":       cty.StringVal(l.agent.Name),
			"datacenter": cty.StringVal(l.agent.Datacenter),
		}),
		"data_dir": cty.StringVal(l.agent.DataDir),
	}
	if l.agent.PluginDir != "" {
		vars["plugin_dir"] = cty.StringVal(l.agent.PluginDir)
	}
	for name, v := range more {
		vars[name] = v
	}
	return &hcl.EvalContext{Variables: vars}
}

// file reads a path. Relative paths start at dir.
func (s *section) file(name, dir string, dst *string) {
	var text string
	if !s.str(name, &text) {
		return
	}
	if text == "" {
		s.fail(name, "is empty")
		return
	}
	if !filepath.IsAbs(text) {
		text = filepath.Join(dir, text)
	}
	*dst = absolute(text)
}

func set[T any](dst, v *T) {
	if v != nil {
		*dst = *v
	}
}

func setPath(dst, v *string) {
	if v != nil {
		*dst = absolute(*v)
	}
}

// absolute makes a path absolute, from the working directory, and clean.
func absolute(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		return filepath.Clean(path)
	}
	return abs
}

// firstThatIs returns the first path that exists, or else the last one.
func firstThatIs(paths ...string) string {
	for _, path := range paths {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return paths[len(paths)-1]
}

var logLevels = []string{"trace", "debug", "info", "warn", "error"}
