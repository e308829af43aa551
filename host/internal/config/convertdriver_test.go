package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
)

// pluginJob is a job of Nomad with one task.
func pluginJob(task string) string {
	return "job \"plugin\" {\n  group \"nodes\" {\n    task \"plugin\" {\n" + task + "\n    }\n  }\n}\n"
}

func TestConvertDriver(t *testing.T) {
	for name, c := range map[string]struct {
		job   string
		wants []string
	}{
		"docker": {pluginJob(`
driver = "docker"
config {
  image      = "registry.k8s.io/sig-storage/nfsplugin:v4.9.0"
  args       = ["--endpoint=${CSI_ENDPOINT}", "--nodeid=${attr.unique.hostname}", "--v=5", "--log=a b"]
  privileged = true
  network_mode = "host"
  volumes    = ["/sys:/sys"]
  logging {}
  mount {
    type   = "bind"
    source = "/dev"
    target = "/dev"
  }
}
csi_plugin {
  id        = "nfs"
  type      = "node"
  mount_dir = "/plugin"
  health_timeout = "1m"
}
env { REGION = "eu-1" }
resources { cpu = 100 }
`), []string{
			"# docker run --detach --name nfs --restart unless-stopped --volume /var/lib/pannier/csi/nfs:/plugin:rshared --env " +
				"'CSI_ENDPOINT=unix:///plugin/csi.sock' --privileged --network host --volume /sys:/sys --mount " +
				"'type=bind,source=/dev,target=/dev' --env 'REGION=eu-1' registry.k8s.io/sig-storage/nfsplugin:v4.9.0 " +
				`'--endpoint=unix:///plugin/csi.sock' "--nodeid=$(hostname)" '--v=5' '--log=a b'` + "\n",
			`csi_driver "nfs" {`, `= "unix:///var/lib/pannier/csi/nfs/csi.sock"`, `mount_dir              = "/plugin"`,
			`= "node"`, `= "1m"`, "# logging: ", "# resources: ",
		}},
		"exec": {pluginJob(`
driver = "raw_exec"
config {
  command = "/usr/bin/rclone-csi"
  args = ["--endpoint", "${CSI_ENDPOINT}", "--node=${node.unique.name}", "--dir=${NOMAD_TASK_DIR}", "--pct=100%"]
}
env { MODE = "a" }
csi_plugin { id = "rclone" }
`), []string{
			`"/usr/bin/rclone-csi", "--endpoint", "${endpoint}", "--node=${node.name}", "--dir=$${NOMAD_TASK_DIR}", "--pct=100%"]`,
			`MODE = "a"`, "# $${NOMAD_TASK_DIR}: no such variable here",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got := string(check.Must(ConvertDriver("job.hcl", []byte(c.job)))(t))
			for _, want := range c.wants {
				if !strings.Contains(got, want) {
					t.Errorf("no %q in\n%s", want, got)
				}
			}
			path := filepath.Join(t.TempDir(), "a.hcl")
			check.NoError(t, os.WriteFile(path, []byte(got), 0o600))
			if _, err := Load(Source{Paths: []string{path}, Environment: os.LookupEnv}); err != nil {
				t.Errorf("%v\n%s", err, got)
			}
		})
	}
	if _, err := ConvertDriver("job.hcl", []byte(pluginJob(`driver = "exec"`))); err == nil ||
		!strings.Contains(err.Error(), "pannier workload convert") {
		t.Errorf("a job without a plugin: %v", err)
	}
}

// What is Nomad's in a file that is given to us is answered with what to write instead.
func TestNomadNamesAreAnswered(t *testing.T) {
	of := func(name string) string { return `"` + name + `": ` + ofNomad[name] }
	for src, wants := range map[string][]string{
		"job \"w\" {\n}": {of("job")},
		"workload \"w\" {\n  csi_plugin {}\n  volume_mount {}\n  namespace = [\"a\"]\n}": {
			of("csi_plugin"), of("volume_mount"), `write one, namespace = "..."`,
		},
		"workload \"w\" {\n  volume \"v\" {\n    type = \"host\"\n    per_alloc = true\n  }\n}": {
			requestFields.refused["type"], requestFields.refused["per_alloc"],
		},
	} {
		_, err := ParseWorkload("w.hcl", []byte(src))
		for _, want := range wants {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s\ngot %v, want %s", src, err, want)
			}
		}
	}
	path := filepath.Join(t.TempDir(), "a.hcl")
	check.NoError(t, os.WriteFile(path, []byte("csi_driver \"d\" {\n  csi_plugin {}\n  command = [\"/d\", \"${CSI_ENDPOINT}\", "+
		"\"${attr.unique.hostname}\", \"${node.unique.name}\"]\n}\n"), 0o600))
	_, err := Load(Source{Paths: []string{path}, Environment: os.LookupEnv})
	for _, name := range []string{"csi_plugin", "CSI_ENDPOINT", "attr", "unique"} {
		if err == nil || !strings.Contains(err.Error(), of(name)) {
			t.Errorf("got %v, want %s", err, of(name))
		}
	}
}
