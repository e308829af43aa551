package dockervolume

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/docker"
	"github.com/pannier/pannier/test/lib/docpages"
	"github.com/pannier/pannier/test/lib/testhost"
)

// podman runs a command of Podman in the engine's mount namespace, with its storage in the host's directory.
func (r *rig) podman(args ...string) (string, error) {
	own := []string{
		"--root", r.Path("podman"), "--runroot", r.Path("podman-run"), "--storage-driver", "vfs",
		"--cgroup-manager", "cgroupfs", "--events-backend", "file", "--tmpdir", r.Path("podman-tmp"), "--runtime", "runc",
	}
	cmd := r.InNamespace("podman", append(own, args...)...)
	cmd.Env = append(os.Environ(), "CONTAINERS_CONF="+r.Path("containers.conf"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestPodman gives a volume to containers of Podman, on a host that has a dockerd too.
func TestPodman(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("podman"); err != nil {
		t.Skip("needs podman (Debian: podman); not covered: volumes of its containers")
	}
	d := docker.Start(t, "volumes of Podman's containers")
	d.Image(t, image, `CMD ["sleep", "1000"]`)
	h := testhost.New(t, testhost.LocalDriver(t)+pluginBlock(t, "local", "3s"), plugin)
	h.Namespace = d.PID()
	h.Start()
	r := &rig{h, d}
	conf := strings.Replace(docpages.Block(t, "docker.md", "config", "podman"), "[engine.volume_plugins]",
		"[engine]\nlock_type = \"file\"\n[engine.volume_plugins]", 1)
	h.Write("containers.conf", conf)
	must := func(args ...string) string {
		t.Helper()
		out, err := r.podman(args...)
		if err != nil {
			t.Fatalf("podman %s: %v\n%s\n%s", strings.Join(args, " "), err, out, r.LogTail())
		}
		return out
	}
	image := filepath.Join(h.Dir, "image.tar")
	r.docker(t, "save", "--output", image, "shell")
	must("load", "--signature-policy", h.Write("policy.json", `{"default": [{"type": "insecureAcceptAnything"}]}`),
		"--input", image)
	t.Cleanup(func() { _, _ = r.podman("rm", "--force", "--all", "--time", "0") })
	must("volume", "create", "--driver", "pannier", "--opt", "size=16MiB", "--opt", "delete=true", "data")
	if got := must("volume", "ls", "--quiet"); got != "data\n" {
		t.Errorf("the volumes are %q", got)
	}
	run := []string{"run", "--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--volume", "data:/data"}
	must(append(run, "--rm", "shell", "sh", "-c", "echo kept >/data/file")...)
	for _, name := range []string{"one", "two"} { // with one id
		must(append(run, "--detach", "--name", name, "shell")...)
	}
	must("rm", "--force", "--time", "0", "one")
	r.held(t, "data")
	if got := must("exec", "two", "cat", "/data/file"); got != "kept\n" {
		t.Errorf("the second container reads %q", got)
	}
	must("rm", "--force", "--time", "0", "two")
	r.awaitFree(t, "data")
	must("volume", "rm", "data")
	h.Refused(3, []string{"not registered"}, "volume", "status", "-namespace", space, "data")
}
