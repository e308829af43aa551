package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// TestDebug collects a bundle on a host with ACLs, a Consul with tokens, and secrets in a volume's spec and a plugin's
// and a driver's configuration. Everything is in it but the line of a driver that prints its secret, and no secret is.
func TestDebug(t *testing.T) {
	t.Parallel()
	const driverSecret, pluginSecret, volumeSecret = "secret-of-a-driver", "secret-of-a-plugin", "secret-of-a-volume"
	file := filepath.Join(t.TempDir(), "driver.secret")
	must(t, os.WriteFile(file, []byte(driverSecret+"\n"), 0o600))
	m := newMesh(t, minted, fmt.Sprintf(`
csi_driver "local" {
  command = ["/bin/sh", "-c", "echo my secret is $SECRET; exec %s -endpoint ${endpoint} -node-id ${node.name} -data-dir ${data_dir}/volumes"]
  env = {
    SECRET = "file://%s"
    TOKEN  = %q
  }
}
acl {
  enabled = true
}
`, testbin.Build(t, "drivers/csi-local"), file, pluginSecret))
	m.talkative()
	m.Begin()
	var made struct{ Secret string }
	m.Eventually("there is a first token", func() error {
		return json.Unmarshal([]byte(m.Try("acl", "bootstrap", "-o", "json").Stdout), &made)
	})
	m.Token = made.Secret
	m.AwaitReady()
	m.AwaitDrivers()
	volume(m.Host, drivers[0], "v", "single-node-writer", fmt.Sprintf("secrets {\n  password = %q\n}\n", volumeSecret))
	must(t, os.Remove(m.Path("v.hcl")))
	m.Run("workload", "start", m.meshWorkload("w", fmt.Sprintf(`
  volume "data" {
    source      = "v"
    destination = %q
  }
`, m.Path("mnt"))+sidecarService("web", "")))
	secrets := []string{
		made.Secret, m.nodeToken, m.aclToken, m.secret(m.service("w")), driverSecret, pluginSecret, volumeSecret,
	}

	collect := func(args ...string) (files map[string]string, missing []string) {
		t.Helper()
		dir := t.TempDir()
		path := filepath.Join(dir, "bundle.tar.gz")
		var sum struct {
			Missing []string
		}
		must(t, json.Unmarshal([]byte(m.Run(append([]string{"debug", "-o", "json", path}, args...)...)), &sum))
		must(t, exec.Command("tar", "-C", dir, "--strip-components=1", "-xzf", path).Run())
		must(t, os.Remove(path))
		files = map[string]string{}
		must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			files[strings.TrimPrefix(path, dir+"/")] = string(text)
			return err
		}))
		return files, sum.Missing
	}
	clean := func(files map[string]string) {
		t.Helper()
		for name, text := range files {
			if testhost.Reveals([]byte(text), secrets) {
				t.Errorf("a secret is in %s", name)
			}
		}
	}
	files, missing := collect("-duration", "100ms")
	clean(files)
	for i, name := range []string{"agent.log", "logs/driver-local.log"} { // the agent's own log has a driver's lines
		if len(missing) != 2 || !strings.HasPrefix(missing[i], name+": lines are left out (1)") ||
			!strings.HasSuffix(missing[i], ": "+file) || files["errors.txt"] != strings.Join(missing, "\n")+"\n" {
			t.Errorf("there are missing %q, errors.txt is %q", missing, files["errors.txt"])
		}
	}
	for name, has := range map[string]string{
		"versions.txt": "kernel ", "configuration.json": m.reach.TokenFile, "status.txt": "Drivers", "status.json": `"ready": true`,
		"doctor.txt": "drivers", "volumes.json": `"v"`, "workloads.json": `"w"`, "nodes.json": `"a"`, "members.json": `"a"`,
		"events.jsonl": `"topic":"driver"`, "agent.log": "the agent is up", "logs/plugin-csi-bridge.log": "csi call", "mounts.txt": "ext4",
		"metrics.txt": "pannier_", "goroutines.txt": "agent.Run", "heap.pprof": "", "cpu.pprof": "",
	} {
		if files[name] == "" || !strings.Contains(files[name], has) {
			t.Errorf("%s does not have %q: %.300q", name, has, files[name])
		}
	}

	// What was done with the volume is on record.
	for _, text := range []string{m.Run("events", "-since", "1h", "-topic", "volume", "-o", "json"), files["events.jsonl"]} {
		if !strings.Contains(text, `"topic":"volume","type":"created","subject":"v"`) {
			t.Errorf("there is no event of the creation: %s", text)
		}
	}

	// Without rights: what is refused is named, the rest is there.
	m.Token = "a-token-of-nobody"
	files, missing = collect()
	clean(files)
	if !strings.Contains(strings.Join(missing, "\n"), "the agent's own files: ") || files["doctor.txt"] == "" {
		t.Errorf("a caller without rights lacks %q", missing)
	}
	m.Token = made.Secret

	// Without an agent, its configuration is read.
	m.Run("workload", "stop", "w")
	m.Stop()
	files, missing = collect("-config", m.Path("agent.hcl"))
	clean(files)
	if !strings.Contains(files["configuration.json"], m.reach.TokenFile) || !strings.Contains(files["doctor.txt"], "does not answer") {
		t.Errorf("without an agent there are %q, missing %q", files["configuration.json"], missing)
	}
}
