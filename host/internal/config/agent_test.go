package config

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
)

// load writes files with the given names and contents to a temporary directory and reads them.
func load(t *testing.T, src Source, files map[string]string) (a *Agent, dir string, err error) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		check.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	if len(files) > 0 {
		src.Paths = append(src.Paths, dir)
	}
	if src.Environment == nil {
		src.Environment = func(string) (string, bool) { return "", false }
	}
	if a, err = Load(src); a != nil {
		a.source, a.Places = Source{}, nil
	}
	return a, dir, err
}

func environment(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

func TestAgentDefaults(t *testing.T) {
	a, _, err := load(t, Source{BinDir: t.TempDir()}, nil)
	check.NoError(t, err)
	hostname, _ := os.Hostname()
	want := &Agent{
		Name: hostname, Datacenter: "dc1", DataDir: "/var/lib/pannier", PluginDir: "/usr/lib/pannier/plugins",
		Socket: "/run/pannier/pannier.sock", BindAddr: "127.0.0.1", HTTPPort: 7420,
		MinDynamicPort: 20000, MaxDynamicPort: 32000, PortsQuota: 2000, SecretsDir: "/var/lib/pannier/secrets",
		RPCPort: 7421, SerfPort: 7422,
		LogLevel: "info", LogFormat: "text", LeavePluginsOnStop: true,
		Server: Server{
			Enabled: true, BootstrapExpect: 1,
			Liveness: claim.Liveness{HeartbeatTTL: 30 * time.Second, StopAfter: time.Minute, Margin: 30 * time.Second},
		},
		Autopilot: claim.Autopilot{
			CleanupDeadServers: true, LastContactThreshold: 200 * time.Millisecond, MaxTrailingLogs: 2000,
			ServerStabilizationTime: 10 * time.Second,
		},
		VolumeMetrics: true, ACL: ACL{SocketRoot: true},
		GC: GC{5 * time.Minute, 5 * time.Minute, 24 * time.Hour, 24 * time.Hour, 24 * time.Hour},
	}
	if !reflect.DeepEqual(a, want) {
		t.Fatalf("got  %+v\nwant %+v", a, want)
	}
}

func TestPluginsBesideTheProgram(t *testing.T) {
	bin := t.TempDir()
	check.NoError(t, os.Mkdir(filepath.Join(bin, "plugins"), 0o755))
	a, _, err := load(t, Source{BinDir: bin}, nil)
	if err != nil || a.PluginDir != filepath.Join(bin, "plugins") {
		t.Fatalf("%v, %v", a, err)
	}
}

func TestAgentFilesMergeInOrder(t *testing.T) {
	a, dir, err := load(t, Source{}, map[string]string{
		"10.hcl": `
name = "n1"
data_dir = "data"
plugin_dir = "${data_dir}/p"
log_level = "debug"
ports { http = 1 }
gc { interval = "1m" }
plugin "csi-bridge" {
  args = ["a"]
  env = { NODE = "${node.name}" }
  user = "one"
  group = "g"
  limits {
    memory     = "512MiB"
    open_files = 1000
  }
  rollback_window = "5m"
  keep_versions   = 5
  state_limit     = "2MiB"
  config {
    a = 1
    nested "l" { b = [true, "${node.name}"] }
  }
}
csi_driver "one" {
  command = ["/bin/d", "-endpoint", "${endpoint}", "${driver.id}", "${node.name}", "${node.datacenter}", "${plugin_dir}"]
  env = { NODE = "${node.name}", TOKEN = "file:///t" }
}
csi_driver "two" {
  endpoint = "unix:///run/${driver.id}.sock"
  type = "node"
  allowed_mount_flags = ["suid", "errors=remount-ro"]
  ephemeral_volumes {
    namespaces = ["shop"]
    secrets = { key = "file:///etc/${driver.id}" }
  }
}
csi_driver "three" {
  command = ["/bin/d", "${endpoint}"]
  health_timeout = "2m"
  controller {
    command = ["/bin/d", "-controller", "${endpoint}"]
    env { A = "1" }
    user = "c"
    limits { memory = "64MiB" }
  }
}
csi_driver "four" {
  controller { endpoint = "unix:///run/${driver.id}.controller.sock" }
}`,
		"20.json": `{
  "log_level": "warn",
  "ports": {"http": 0},
  "gc": {"claim_threshold": "2m"},
  "plugin": {"csi-bridge": {"user": "two", "limits": {"open_files": 2000, "processes": 300}}, "other": {"rollback_window": "0s", "config": {"x": {"y": "${node.name}"}}}},
  "csi_driver": {"one": {"endpoint": "unix:///run/one.sock", "health_timeout": "1m"}, "three": {"controller": {"user": "d"}}}
}`,
		".hidden.hcl": "nonsense = 1",
		"notes.txt":   "nonsense",
	})
	check.NoError(t, err)
	if a.Name != "n1" || a.DataDir != dir+"/data" || a.PluginDir != dir+"/data/p" || a.LogLevel != "warn" ||
		a.HTTPPort != 0 ||
		a.GC.Interval != time.Minute || a.GC.ClaimThreshold != 2*time.Minute {
		t.Errorf("%+v", a)
	}
	plugins := []Plugin{
		{
			Name: "csi-bridge", Args: []string{"a"}, Env: map[string]string{"NODE": "n1"}, User: "two", Group: "g",
			Limits: process.Limits{
				Memory: 512 << 20, OpenFiles: 2000,
				Processes: 300,
			}, RollbackWindow: 5 * time.Minute, KeepVersions: 5, StateLimit: 2 << 20, Config: []byte(`{"a":1,"nested":{"l":{"b":[true,"n1"]}}}`),
			Where: dir + "/10.hcl:20",
		},
		{
			Name: "other", RollbackWindow: 0, KeepVersions: 3, Config: []byte(`{"x":{"y":"n1"}}`),
			Where: dir + "/20.json:5",
		},
	}
	if !reflect.DeepEqual(a.Plugins, plugins) {
		t.Errorf("plugins: %+v", a.Plugins)
	}
	drivers := []Driver{
		{
			ID: "four", Type: "node", Endpoint: "unix://" + dir + "/data/csi/four/csi.sock", HealthTimeout: 30 * time.Second,
			Controller: &Driver{
				ID: "four", Type: "controller", Endpoint: "unix:///run/four.controller.sock", HealthTimeout: 30 * time.Second,
			},
		},
		{
			ID: "one", Type: "monolith", Endpoint: "unix:///run/one.sock", HealthTimeout: time.Minute,
			Command: []string{"/bin/d", "-endpoint", "unix:///run/one.sock", "one", "n1", "dc1", dir + "/data/p"},
			Env:     map[string]string{"NODE": "n1", "TOKEN": "file:///t"},
		},
		{
			ID: "three", Type: "node", Endpoint: "unix://" + dir + "/data/csi/three/csi.sock", HealthTimeout: 2 * time.Minute,
			Command: []string{"/bin/d", "unix://" + dir + "/data/csi/three/csi.sock"},
			Controller: &Driver{
				ID: "three", Type: "controller", Endpoint: "unix://" + dir + "/data/csi/three/controller/csi.sock",
				HealthTimeout: 2 * time.Minute, Env: map[string]string{"A": "1"}, User: "d",
				Limits:  process.Limits{Memory: 64 << 20},
				Command: []string{"/bin/d", "-controller", "unix://" + dir + "/data/csi/three/controller/csi.sock"},
			},
		},
		{
			ID: "two", Type: "node", Endpoint: "unix:///run/two.sock", HealthTimeout: 30 * time.Second,
			AllowedMountFlags: []string{"suid", "errors=remount-ro"}, EphemeralVolumes: &EphemeralVolumes{
				Namespaces: []string{"shop"}, Secrets: map[string]string{"key": "file:///etc/two"},
			},
		},
	}
	if !reflect.DeepEqual(a.Drivers, drivers) {
		t.Errorf("drivers: %+v", a.Drivers)
	}
}

// A key is written into the block, or in a file beside the configuration. The later block replaces the earlier one.
func TestPluginSigning(t *testing.T) {
	const (
		line = "RWSE6MWlJCUgTCdTUEMYq5p3xb0PQhZ6Bh+CtJrR4GNlqIdpZX6h0dCo"
		file = "untrusted comment: minisign public key 4C202524A5C5E884\n" + line + "\n"
	)
	for name, tc := range map[string]struct {
		block    string
		keys     int
		required bool
	}{
		"both":     {`keys = ["` + line + `", "release.pub"]`, 2, true},
		"not yet":  {"keys = [\"release.pub\"]\nrequire_signature = false", 1, false},
		"required": {"keys = [\"release.pub\"]\nrequire_signature = true", 1, true},
	} {
		a, _, err := load(t, Source{}, map[string]string{
			"1.hcl":       "plugin_signing {\nkeys = [\"" + line + "\", \"" + line + "\", \"" + line + "\"]\n}",
			"2.hcl":       "plugin_signing {\n" + tc.block + "\n}",
			"release.pub": file,
		})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if s := a.PluginSigning; len(s.Keys) != tc.keys || s.Required != tc.required || s.Keys[0].ID() != "4C202524A5C5E884" {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

func TestFlagBeatsEnvironmentBeatsFile(t *testing.T) {
	files := map[string]string{"a.hcl": `
name = "file"
data_dir = "/file"
socket = "/file.sock"
log_level = "debug"
ports { http = 1 }
csi_driver "d" {}
`}
	env := environment(map[string]string{
		"PANNIER_NAME": "env", "PANNIER_DATA_DIR": "/env", "PANNIER_HTTP_PORT": "2",
		"PANNIER_LOG_LEVEL": "warn",
	})
	flag, port := "/flag", 3
	a, _, err := load(t, Source{Environment: env, Flags: Overrides{DataDir: &flag, HTTPPort: &port}}, files)
	check.NoError(t, err)
	if a.Name != "env" || a.DataDir != "/flag" || a.HTTPPort != 3 || a.LogLevel != "warn" || a.Socket != "/file.sock" {
		t.Errorf("%+v", a)
	}
	if a.Drivers[0].Endpoint != "unix:///flag/csi/d/csi.sock" {
		t.Errorf("endpoint %q does not follow the data directory", a.Drivers[0].Endpoint)
	}
}

func TestDev(t *testing.T) {
	data, bin := t.TempDir(), t.TempDir()
	local := filepath.Join(bin, "csi-local")
	check.NoError(t, os.WriteFile(local, nil, 0o755))
	name := "n"
	src := Source{Dev: true, BinDir: bin, Flags: Overrides{DataDir: &data, Name: &name}}
	a, _, err := load(t, src, nil)
	check.NoError(t, err)
	endpoint := "unix://" + data + "/csi/local/csi.sock"
	want := []Driver{{
		ID: "local", Type: "monolith", Endpoint: endpoint, HealthTimeout: 30 * time.Second,
		Command: []string{local, "-endpoint", endpoint, "-node-id", "n", "-data-dir", data + "/volumes"},
	}}
	if !reflect.DeepEqual(a.Drivers, want) || a.LeavePluginsOnStop || a.Dev || a.Socket != data+"/pannier.sock" {
		t.Errorf("%+v", a)
	}
	src.Flags.DataDir, src.TempDir = nil, func() (string, error) { return "/temporary", nil }
	if a, _, err = load(t, src, nil); err != nil || a.DataDir != "/temporary" || !a.Dev {
		t.Errorf("no temporary data directory: %+v, %v", a, err)
	}
	a, _, err = load(t, src, map[string]string{"a.hcl": "data_dir = \"/d\"\nsocket = \"/s\"\ncsi_driver \"local\" {}"})
	if err != nil || a.Socket != "/s" || a.DataDir != "/d" || a.Drivers[0].Command != nil {
		t.Errorf("a file's own settings lost: %+v, %v", a, err)
	}
}

func TestBadAgents(t *testing.T) {
	for pair := range slices.Chunk([]string{
		"\nbind_adr = \"::\"", `2: unsupported argument "bind_adr"; did you mean "bind_addr"?`,
		"traces {\n  endpoint = \"collector:4318\"\n}",
		`2: traces: endpoint: a URL such as "http://127.0.0.1:4318" is required`,
		"traces {\n  endpoint = \"http://u:p@collector\"\n}",
		`2: traces: endpoint: a URL such as "http://127.0.0.1:4318" is required`,
		"telemetry {}", "1: unsupported block \"telemetry\"",
		"consol {}", `1: unsupported block "consol"; did you mean "consul"?`,
		"ports {\n  htp = 1\n}", `2: ports: unsupported argument "htp"; did you mean "http"?`,
		"ports {\n  http = 70000\n}", `2: ports: http: a whole number from 0 to 65535 is required`,
		"ports {\n  http = \"80\"\n}", `2: ports: http: a number is required, not a string`,
		"ports {\n  min_dynamic_port = 0\n}", `2: ports: min_dynamic_port: a whole number from 1 to 65535 is required`,
		"consul {\n  token_fle = \"x\"\n}", `2: consul: unsupported argument "token_fle"; did you mean "token_file"?`,
		`consul "a" "b" {}`, `1: extraneous label for consul: Only 1 labels (name) are expected for consul blocks`,
		"consul \"a/b\" {}",
		`1: consul "a/b": name "a/b" has the character '/': only a-z, A-Z, 0-9, '-', '_' and '.' are allowed`,
		"consul {}\nconsul \"default\" {}", `2: consul "default": block given twice in this file`,
		"consul \"a\" {\n  name = \"b\"\n}", `2: consul "a": name: "b" is not the block's label; leave one of them out`,
		"consul \"a\" {\n  address = \"consul\"\n}",
		`2: consul "a": address: "consul" is not "HOST:PORT", "https://HOST:PORT" or "unix:///PATH"`,
		"consul {\n  grpc_address = \"ftp://a:1\"\n}",
		`2: consul: grpc_address: "ftp://a:1" is not "HOST:PORT", "https://HOST:PORT" or "unix:///PATH"`,
		"consul {\n  address = \"unix://run/consul\"\n}",
		`2: consul: address: "unix://run/consul" is not "HOST:PORT", "https://HOST:PORT" or "unix:///PATH"`,
		"consul {\n  address = \"https://a:70000\"\n}",
		`2: consul: address: "https://a:70000" is not "HOST:PORT", "https://HOST:PORT" or "unix:///PATH"`,
		"consul {\n  cert_file = \"/c\"\n}",
		`2: consul "default": cert_file: goes together with key_file; give both or none`,
		"consul {\n  audience = \"\"\n}", `2: consul: audience: is empty`,
		"consul {\n  identity_timeout = \"5\"\n}",
		`2: consul: identity_timeout: a duration above 0 such as "30s" or "5m" is required, not "5"`,
		`log_level = "loud"`, `1: log_level: "loud" is not one of trace, debug, info, warn, error`,
		`log_format = "xml"`, `1: log_format: "xml" is not one of text, json`,
		`leave_plugins_on_stop = "yes"`, `1: leave_plugins_on_stop: true or false is required, not a string`,
		"gc {\n  interval = \"5\"\n}", `2: gc: interval: a duration above 0 such as "30s" or "5m" is required, not "5"`,
		"gc {\n  interval = \"-5s\"\n}",
		`2: gc: interval: a duration above 0 such as "30s" or "5m" is required, not "-5s"`,
		"csi_driver \"d\" {\n  command = [\"/d\", \"${nod.name}\"]\n}",
		`2: csi_driver "d": command: unknown variable "nod"; did you mean "node"?`,
		"csi_driver \"d\" {\n  command = [\"/d\", \"${node.nam}\"]\n}",
		`2: csi_driver "d": command: unknown variable "nam"`,
		`name = "${data_dir}"`, `1: name: variables are not allowed here; write $${ for a literal ${`,
		"csi_driver \"d\" {\n  env = { \"a-b\" = \"1\" }\n}", `2: csi_driver "d": env: "a-b" is no name of a variable`,
		"csi_driver \"d\" {\n  env = { CSI_ENDPOINT = \"x\" }\n}",
		`2: csi_driver "d": env: CSI_ENDPOINT is the endpoint: set that`,
		"csi_driver \"d\" {\n  command = [\"d\"]\n}",
		`2: csi_driver "d": command: the program needs an absolute path, not "d"`,
		"csi_driver \"d\" {\n  type = \"both\"\n}",
		`2: csi_driver "d": type: "both" is not one of node, controller, monolith`,
		"csi_driver \"d\" {\n  type = \"monolith\"\n  controller {}\n}",
		`2: csi_driver "d": type: is "monolith", and the block has a controller block: write node, or nothing`,
		"csi_driver \"d\" {\n  controller {\n    command = [\"d\"]\n  }\n}",
		`3: csi_driver "d": controller: command: the program needs an absolute path, not "d"`,
		"csi_driver \"d\" {\n  endpoint = \"unix:///s\"\n  controller {\n    endpoint = \"unix:///s\"\n  }\n}",
		`4: csi_driver "d": controller: endpoint: "unix:///s" is that of csi_driver "d" too`,
		`csi_driver "a/b" {}`,
		`1: csi_driver "a/b": name "a/b" has the character '/': only a-z, A-Z, 0-9, '-', '_' and '.' are allowed`,
		"csi_driver \"d\" {}\ncsi_driver \"d\" {}", `2: csi_driver "d": block given twice in this file`,
		"csi_driver \"d\" {\n  endpoint = \"tcp://x:1\"\n}",
		`2: csi_driver "d": endpoint: "tcp://x:1" is not unix:// and an absolute path`,
		"csi_driver \"a\" {\n  endpoint = \"unix:///s\"\n}\ncsi_driver \"b\" {\n  endpoint = \"unix:///s\"\n}",
		`5: csi_driver "b": endpoint: "unix:///s" is that of csi_driver "a" too`,
		"csi_driver \"d\" {\n  mount_dir = \"csi\"\n}", `2: csi_driver "d": mount_dir: "csi" is not an absolute path`,
		`plugin "../x" {}`,
		`1: plugin "../x": name "../x" has the character '/': only a-z, A-Z, 0-9, '-', '_' and '.' are allowed`,
		"plugin \"p\" {\n  version = \"about 1\"\n}",
		`2: plugin "p": version: "about 1" is no constraint such as "~> 1.2"`,
		"plugin \"p\" {\n  env = { \"a-b\" = \"1\" }\n}", `2: plugin "p": env: "a-b" is no name of a variable`,
		"plugin \"p\" {\n  env {\n    PANNIER_LOG_LEVEL = \"info\"\n  }\n}",
		`2: plugin "p": env: PANNIER_LOG_LEVEL: variables that begin with PANNIER_ or PLUGIN_ are the agent's`,
		"plugin \"p\" {\n  limits {\n    memory = \"1MiB\"\n  }\n}",
		`3: plugin "p": limits: memory: must be at least 16 MiB`,
		"plugin \"p\" {\n  limits {\n    memory = \"some\"\n  }\n}",
		`3: plugin "p": limits: memory: "some" is not a size such as "10GiB"`,
		"plugin \"p\" {\n  limits {\n    open_files = 1\n  }\n}",
		`3: plugin "p": limits: open_files: a whole number from 64 to 2147483647 is required`,
		"plugin \"p\" {\n  limits {\n    processes = 1\n  }\n}",
		`3: plugin "p": limits: processes: a whole number from 32 to 2147483647 is required`,
		"plugin_signing {\n  require_signature = true\n}",
		"1: plugin_signing: keys: names no key: give the line that begins with RW, or the path, of a minisign public key",
		"plugin_signing {\n  keys = [\"/nowhere.pub\"]\n}",
		`2: plugin_signing: keys: "/nowhere.pub" is neither a minisign public key nor the path of one: ` +
			"lstat /nowhere.pub: no such file or directory",
		"plugin \"p\" {\n  rollback_window = \"-1s\"\n}",
		`2: plugin "p": rollback_window: a duration such as "30s", or "0s", is required, not "-1s"`,
		"plugin \"p\" {\n  state_limit = \"1KiB\"\n}",
		`2: plugin "p": state_limit: must be from 64 KiB to 16 MiB`,
		"plugin \"p\" {\n  keep_versions = 1\n}",
		`2: plugin "p": keep_versions: a whole number from 2 to 2147483647 is required`,
		"plugin \"p\" {\n  checksum = \"md5:1\"\n}", `2: plugin "p": checksum: "md5:1" is not sha256: and 64 hex digits`,
		"plugin \"p\" {\n  config {\n    a = b\n  }\n}", `3: plugin "p": config.a: unknown variable "b"`,
		"ports {\n  min_dynamic_port = 40000\n}",
		`2: ports: min_dynamic_port: 40000 is above max_dynamic_port, which is 32000`,
		"data_dir = \"/d\"\nsecrets_dir = \"/\"",
		`2: secrets_dir: "/" would hide "/d": a file system of its own is mounted there; choose another folder`,
		"data_dir = \"/d/e\"\nsecrets_dir = \"/d\"",
		`2: secrets_dir: "/d" would hide "/d/e": a file system of its own is mounted there; choose another folder`,
		"plugin_dir = \"/p\"\nsecrets_dir = \"/p\"",
		`2: secrets_dir: "/p" would hide "/p": a file system of its own is mounted there; choose another folder`,
		"plugin {}", `1: missing name for plugin: All plugin blocks must have 1 labels (name)`,
		"ports {",
		"1: unclosed configuration block: There is no closing brace for this block before the end of the file. This may be caused by incorrect brace nesting elsewhere in this file",
	}, 2) {
		src, want := pair[0], pair[1]
		_, dir, err := load(t, Source{}, map[string]string{"a.hcl": src})
		wantProblems(t, err, strings.ReplaceAll("DIR/a.hcl:"+want, "DIR", dir))
	}
}

func TestConsuls(t *testing.T) {
	a, dir, err := load(t, Source{}, map[string]string{
		"10.hcl": `
data_dir = "/data"
consul {
  address = "https://127.0.0.1:8501"
  token_file = "token"
  cert_file = "c.pem"
  datacenter = node.datacenter
}
consul "west" {}
consul {
  name = "east"
  address = "unix:///run/consul.sock"
  grpc_address = "http://[::1]:8502"
  auth_method = "pannier"
  audience = "mesh"
  identity_timeout = "1m"
}`,
		"20.json": `{"consul": [
  {"key_file": "/k.pem", "ca_file": "ca.pem", "tls_server_name": "server.dc1.consul", "grpc_ca_file": "grpc.pem"},
  {"east": {"namespace": "n", "partition": "p"}, "north": {"address": "north:8500"}}
]}`,
		"30.json": `{"secrets_dir": "secret", "ports": {"min_dynamic_port": 1024, "max_dynamic_port": 1024}}`,
	})
	check.NoError(t, err)
	consul := func(name, address string) Consul {
		return Consul{
			Consul: service.Consul{Name: name, Address: address}, Audience: "consul.io",
			IdentityTimeout: 5 * time.Minute,
		}
	}
	first, east := consul("default", "https://127.0.0.1:8501"), consul("east", "unix:///run/consul.sock")
	first.TokenFile, first.CAFile, first.CertFile, first.KeyFile = dir+"/token", dir+"/ca.pem", dir+"/c.pem", "/k.pem"
	first.TLSServerName, first.GRPCCAFile, first.Datacenter = "server.dc1.consul", dir+"/grpc.pem", "dc1"
	east.GRPCAddress, east.AuthMethod, east.Namespace, east.Partition = "http://[::1]:8502", "pannier", "n", "p"
	east.Audience, east.IdentityTimeout = "mesh", time.Minute
	want := []Consul{first, east, consul("north", "north:8500"), consul("west", "127.0.0.1:8500")}
	if !reflect.DeepEqual(a.Consuls, want) {
		t.Errorf("got  %+v\nwant %+v", a.Consuls, want)
	}
	if a.SecretsDir != dir+"/secret" || a.MinDynamicPort != 1024 || a.MaxDynamicPort != 1024 {
		t.Errorf("got %+v", a)
	}
}

func TestOneConsulInJSON(t *testing.T) {
	for _, text := range []string{
		`{"consul": {"address": "c:1"}}`, `{"consul": {"default": {"address": "c:1"}}}`,
		`{"consul": [{"name": "default", "address": "c:1"}]}`,
	} {
		a, _, err := load(t, Source{}, map[string]string{"a.json": text})
		if err != nil || len(a.Consuls) != 1 || a.Consuls[0].Address != "c:1" || a.Consuls[0].Name != "default" {
			t.Errorf("%s: got %+v, %v", text, a, err)
		}
	}
}

func TestBadSettingsFromOutside(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		want string
	}{
		"port": {map[string]string{"PANNIER_HTTP_PORT": "x"}, `PANNIER_HTTP_PORT: a number is required, not "x"`},
		"port 2": {
			map[string]string{"PANNIER_HTTP_PORT": "-1"},
			`ports: http: a whole number from 0 to 65535 is required, not -1`,
		},
		"level": {
			map[string]string{"PANNIER_LOG_LEVEL": "x"},
			`log_level: "x" is not one of trace, debug, info, warn, error`,
		},
		"name": {
			map[string]string{"PANNIER_NAME": "a/b"},
			`name: "a/b" has the character '/': only a-z, A-Z, 0-9, '-', '_' and '.' are allowed; set name in the configuration, or -name`,
		},
		"socket": {
			map[string]string{"PANNIER_SOCKET": "/" + strings.Repeat("a", 107)},
			`socket: "/` + strings.Repeat("a", 107) +
				`" is longer than a socket's path may be (90 bytes); choose a shorter one`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := load(t, Source{Environment: environment(c.env)}, nil)
			wantProblems(t, err, c.want)
		})
	}
	_, _, err := load(t, Source{Paths: []string{"/no/such"}}, nil)
	wantProblems(t, err, "/no/such: cannot be read: no such file or directory")
}

func TestExamplesParse(t *testing.T) {
	files, err := filepath.Glob("../../../examples/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range files {
		base := filepath.Base(file)
		switch {
		case strings.HasPrefix(base, "agent"):
			_, err = Load(Source{Paths: []string{file}, Environment: environment(nil)})
		case strings.HasPrefix(base, "volume"):
			_, err = ReadVolume(file)
		case strings.HasPrefix(base, "workload"):
			_, err = ReadWorkload(file)
		default:
			continue
		}
		if err != nil {
			t.Errorf("%s:\n%v", base, err)
		}
	}
}

// The examples that promise to show every key do so, and so do the reference pages.
func TestEveryKeyIsShown(t *testing.T) {
	for read, files := range map[string][]string{
		"agent":    {"docs/configuration.md", "examples/agent.hcl", "examples/agent-cluster.hcl"},
		"workload": {"docs/workload-spec.md", "examples/workload-full.hcl"},
	} {
		known := map[string]bool{}
		opened = func(f fields) {
			for _, key := range slices.Concat(f.attrs, f.blocks, f.labelled, f.named, f.maps) {
				known[key] = true
			}
		}
		var page, examples string
		for n, file := range files {
			text := string(check.Must(os.ReadFile("../../../" + file))(t))
			if n == 0 {
				page = text
				continue
			}
			examples += text
			var err error
			if read == "agent" {
				_, err = Load(Source{Paths: []string{"../../../" + file}, Environment: environment(nil)})
			} else {
				_, err = ReadWorkload("../../../" + file)
			}
			check.NoError(t, err)
		}
		opened = func(fields) {}
		for key := range known {
			shown := regexp.MustCompile(`\b` + key + `\b`)
			if !shown.MatchString(page) || !shown.MatchString(examples) {
				t.Errorf("%q of %s is not in all of %q", key, read, files)
			}
		}
	}
}

func FuzzAgent(f *testing.F) {
	text, err := os.ReadFile("../../../examples/agent.hcl")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, src []byte) {
		path := filepath.Join(t.TempDir(), "a.hcl")
		if bytes.HasPrefix(src, []byte("{")) {
			path = strings.TrimSuffix(path, ".hcl") + ".json"
		}
		check.NoError(t, os.WriteFile(path, src, 0o644))
		// This only checks that Load returns. Whether a configuration is valid is up to check.
		_, _ = Load(Source{Paths: []string{path}, Environment: environment(nil)})
	})
}
