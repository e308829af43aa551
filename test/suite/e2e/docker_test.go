package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/docker"
	"github.com/pannier/pannier/test/lib/docpages"
	"github.com/pannier/pannier/test/lib/envoy"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// image has a shell and keeps running.
const image = "redis"

// TestDocker runs workloads and drivers in real containers. The host of each test lives in
// dockerd's mount namespace.
func TestDocker(t *testing.T) {
	t.Parallel()
	d := docker.Start(t, "workloads and drivers in containers")
	d.Image(t, image, `CMD ["sleep", "1000"]`)
	for name, test := range map[string]func(t *testing.T, h *testhost.Host, d *docker.Daemon){
		"workload":               dockerWorkload,
		"read-only":              dockerReadOnly,
		"block device":           dockerBlock,
		"container outlives":     dockerOutlives,
		"shared volume outlives": dockerSharedOutlives,
		"block device outlives":  dockerBlockOutlives,
		"beneath the mount":      dockerBeneath,
	} {
		t.Run(name, func(t *testing.T) {
			h := testhost.New(t, testhost.LocalDriver(t))
			h.Namespace = d.PID()
			h.Start()
			test(t, h, d)
		})
	}
	t.Run("driver", func(t *testing.T) { dockerDriver(t, d) })
	t.Run("driver without propagation", func(t *testing.T) { dockerDriverAlone(t, d) })
	t.Run("mesh", func(t *testing.T) { dockerMesh(t, d) })
}

// documented runs the lines of a named code block of a page, with the usual paths replaced by this
// host's.
func documented(t *testing.T, h *testhost.Host, d *docker.Daemon, page, name string, replace ...string) {
	t.Helper()
	script := docpages.Block(t, page, "run", name)
	bin := h.Path("bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(h.Pannier, filepath.Join(bin, "pannier")); err != nil && !os.IsExist(err) {
		t.Fatal(err)
	}
	replace = append(replace, "/var/lib/pannier", h.Path("data"), "/srv/volumes", h.Path("data/volumes"))
	cmd := h.InNamespace("sh", "-ec", "cd "+h.Dir+"\n"+strings.NewReplacer(replace...).Replace(script))
	cmd.Env = d.Command().Env
	cmd.Env = append(cmd.Env, "PATH="+bin+":"+os.Getenv("PATH"), "PANNIER_ADDR=unix://"+h.Socket())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("docs/%s, %q: %v\n%s", page, name, err, out)
	}
}

// remove removes a container when the test ends, if it still exists.
func remove(t *testing.T, d *docker.Daemon, name string) {
	t.Cleanup(func() { _, _ = d.Try("rm", "--force", name) })
}

// container prepares a docker command with the flags that `pannier workload start` prints, split as a shell
// splits them.
func container(flags string, more ...string) []string {
	return append(append([]string{"run"}, strings.Fields(flags)...), more...)
}

func dockerWorkload(t *testing.T, h *testhost.Host, d *docker.Daemon) {
	volume(h, drivers[0], "redis-data", "single-node-writer", "")
	workload(h, "redis", "redis-data", "")
	file := h.Path("mnt") + "/file"
	remove(t, d, "redis")
	documented(t, h, d, "workloads.md", "start")
	d.Run(t, "exec", "redis", "sh", "-c", "echo kept > "+file)
	d.Run(t, "restart", "--time", "0", "redis")
	if got := d.Run(t, "exec", "redis", "cat", file); got != "kept\n" {
		t.Errorf("after a restart the container reads %q", got)
	}
	documented(t, h, d, "workloads.md", "stop")
	h.NothingInUse()

	flags := h.Run("workload", "start", "-o", "docker", h.Path("redis.hcl"))
	d.Run(t, append(container(flags, "--name", "redis"), image, "cat", file)...)
	h.Run("workload", "stop", "redis")
	h.NothingInUse()
	if out, err := d.Try("start", "--attach", "redis"); err == nil || !strings.Contains(out, "does not exist") {
		t.Errorf("a container of a stopped workload was started: %v, %s", err, out)
	}
	h.Run("workload", "start", h.Path("redis.hcl"))
	if got := d.Run(t, "start", "--attach", "redis"); got != "kept\n" {
		t.Errorf("the old container reads %q in the workload's next life", got)
	}
	documented(t, h, d, "workloads.md", "stop")
	h.NothingInUse()
	h.Run("volume", "delete", "redis-data")
}

func dockerReadOnly(t *testing.T, h *testhost.Host, d *docker.Daemon) {
	volume(h, drivers[0], "data", "single-node-writer", "")
	file := h.Path("mnt") + "/file"
	h.Run("workload", "run", workload(h, "w", "data", ""), "--", "touch", file)
	flags := h.Run("workload", "start", "-o", "docker", workload(h, "r", "data", "read_only = true"))
	d.Run(t, container(flags, "--rm", image, "test", "-e", file)...)
	if out, err := d.Try(container(flags, "--rm", image, "touch", file)...); err == nil ||
		!strings.Contains(out, "Read-only") {
		t.Errorf("a write to a read-only volume gave %v: %s", err, out)
	}
	h.Run("workload", "stop", "r")
	h.NothingInUse()
}

func dockerBlock(t *testing.T, h *testhost.Host, d *docker.Daemon) {
	h.Run("volume", "create", h.Write("raw.hcl", volumeSpec(drivers[0], "raw", "single-node-writer", "block-device", "")))
	device := h.Path("mnt")
	write := "printf block | dd of=" + device + " conv=notrunc,fsync"
	flags := h.Run("workload", "start", "-o", "docker", workload(h, "w", "raw", ""))
	d.Run(t, container(flags, "--rm", image, "sh", "-c", "test -b "+device+" && "+write)...)
	h.Run("workload", "stop", "w")
	h.NothingInUse()
	flags = h.Run("workload", "start", "-o", "docker", workload(h, "r", "raw", "read_only = true"))
	if got := d.Run(t, container(flags, "--rm", image, "head", "-c", "5", device)...); got != "block" {
		t.Errorf("the next container reads %q", got)
	}
	if out, err := d.Try(container(flags, "--rm", image, "sh", "-c", write)...); err == nil {
		t.Errorf("a read-only device could be written to: %s", out)
	}
	h.Run("workload", "stop", "r")
	h.NothingInUse()
}

// A running container keeps the volume: its mount is a copy of the host's.
func dockerOutlives(t *testing.T, h *testhost.Host, d *docker.Daemon) {
	volume(h, drivers[0], "data", "single-node-single-writer", "")
	flags := h.Run("workload", "start", "-o", "docker", workload(h, "first", "data", ""))
	remove(t, d, "first")
	d.Run(t, container(flags, "--detach", "--name", "first", image)...)
	id := strings.TrimSpace(d.Run(t, "inspect", "--format", "{{.Id}}", "first"))
	stopped := stopWaits(t, h, "first", `"data"`, "(sleep)", "read-write", `container "first" (docker, `+id[:12]+")")
	if status := h.Run("workload", "status", "first"); strings.Contains(status, id) {
		t.Errorf("the status shows the container's whole id:\n%s", status)
	}
	if explained := h.Run("volume", "explain", "data"); !strings.Contains(explained, "docker stop first") {
		t.Errorf("it is not explained what to stop:\n%s", explained)
	}

	h.Refused(4, []string{`workload "first"`}, "workload", "start", workload(h, "second", "data", ""))
	d.Run(t, "exec", "first", "touch", h.Path("mnt")+"/file") // it still works
	d.Run(t, "rm", "--force", "first")
	stopped()
	h.NothingInUse()
	h.Run("workload", "run", h.Path("second.hcl"), "--", "test", "-e", h.Path("mnt")+"/file")
	h.NothingInUse()
}

// The host cannot tell which container holds a copy of which mount, so the last workload waits for all
// containers.
func dockerSharedOutlives(t *testing.T, h *testhost.Host, d *docker.Daemon) {
	volume(h, drivers[0], "data", "single-node-multi-writer", "")
	flags := h.Run("workload", "start", "-o", "docker", workload(h, "first", "data", ""))
	h.Run("workload", "start", workload(h, "second", "data", ""))
	remove(t, d, "first")
	d.Run(t, container(flags, "--detach", "--name", "first", image)...)
	h.Run("workload", "stop", "first")
	stopped := stopWaits(t, h, "second", "(sleep)")
	d.Run(t, "rm", "--force", "first")
	stopped()
	h.NothingInUse()
}

func dockerBlockOutlives(t *testing.T, h *testhost.Host, d *docker.Daemon) {
	h.Run("volume", "create", h.Write("raw.hcl", volumeSpec(drivers[0], "raw", "single-node-writer", "block-device", "")))
	flags := h.Run("workload", "start", "-o", "docker", workload(h, "w", "raw", ""))
	remove(t, d, "w1")
	d.Run(t, container(flags, "--detach", "--name", "w1", image)...)
	stopped := stopWaits(t, h, "w", "(sleep)", h.Path("mnt"))
	d.Run(t, "rm", "--force", "w1")
	stopped()
	h.NothingInUse()
}

// A container that was given the published path before the volume was mounted writes to the directory beneath
// the mount.
func dockerBeneath(t *testing.T, h *testhost.Host, d *docker.Daemon) {
	volume(h, drivers[0], "data", "single-node-writer", "")
	target := h.Path("data/csi/local/per-workload/w/default/data/" + usage + "/data")
	remove(t, d, "early")
	d.Run(t, "run", "--detach", "--name", "early", "--volume", target+":/early", image)
	h.Run("workload", "start", workload(h, "w", "data", ""))
	d.Run(t, "exec", "early", "sh", "-c", "echo stray > /early/file")
	h.Run("workload", "stop", "w")
	setAside(t, h, target, "stray\n")
	h.NothingInUse()

	d.Run(t, "rm", "--force", "early")
	d.Run(t, "run", "--rm", "--volume", target+":/early", image, "touch", "/early/file")
	h.Refused(1, []string{target, `"file"`, "would hide"}, "workload", "start", h.Path("w.hcl"))
	must(t, os.RemoveAll(target))
	h.Run("workload", "run", h.Path("w.hcl"), "--", "true")
	h.NothingInUse()
}

// setAside checks that an event reports the new place of a file that was found in a directory.
func setAside(t *testing.T, h *testhost.Host, from, content string) {
	t.Helper()
	for line := range strings.Lines(h.Run("events", "-recent", "1000")) {
		if !strings.Contains(line, "set-aside") || !strings.Contains(line, from) {
			continue
		}
		_, to, _ := strings.Cut(line, "they are in ")
		to, _, _ = strings.Cut(to, " now")
		if raw, err := os.ReadFile(filepath.Join(to, "file")); err != nil || string(raw) != content {
			t.Errorf("%s contains %q (%v)", to, raw, err)
		}
		return
	}
	t.Errorf("no event says where the files of %s are:\n%s", from, h.Run("events", "-recent", "1000"))
}

// stopWaits stops a workload and waits until its status reports with these words that the volume is still in
// use. It returns a function for the stop's result.
func stopWaits(t *testing.T, h *testhost.Host, id string, words ...string) (stopped func()) {
	t.Helper()
	var out bytes.Buffer
	cmd := h.Command("workload", "stop", id)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	var status string
	h.Eventually("the status names the user of the volume", func() error {
		select {
		case err := <-ended:
			t.Fatalf("the volume is released while a container has it: %v\n%s", err, &out)
		default:
		}
		if status = h.Run("workload", "status", id); !strings.Contains(status, "still in use") {
			return os.ErrNotExist
		}
		return nil
	})
	for _, w := range words {
		if !strings.Contains(status, w) {
			t.Errorf("the status does not say %q:\n%s", w, status)
		}
	}
	return func() {
		t.Helper()
		if err := <-ended; err != nil {
			t.Errorf("the stop that waited: %v\n%s", err, &out)
		}
	}
}

// inContainer starts a host whose csi-local runs in a container. The documented commands start the container,
// with replacements.
func inContainer(t *testing.T, d *docker.Daemon, replace ...string) *testhost.Host {
	t.Helper()
	h := testhost.New(t, "")
	h.Namespace = d.PID()
	more, err := os.ReadFile(h.Path("agent.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	h.Write("agent.hcl", string(more)+`
csi_driver "local" {
  endpoint               = "unix://`+h.Path("data/csi/local/csi.sock")+`"
  mount_dir              = "/csi"
  stage_publish_base_dir = "/csi"
}
`)
	mkfs, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		t.Skip("needs mkfs.ext4 (Debian: e2fsprogs); not covered: a driver in a container")
	}
	program := testbin.Build(t, "drivers/csi-local")
	d.Image(t, "example/csi-local", `ENTRYPOINT ["/bin/`+filepath.Base(program)+`"]`, program, mkfs)
	remove(t, d, "csi-local")
	documented(t, h, d, "drivers.md", "driver", replace...)
	h.Start()
	return h
}

func dockerDriver(t *testing.T, d *docker.Daemon) {
	h := inContainer(t, d)
	volume(h, drivers[0], "data", "single-node-single-writer", "")
	file := h.Path("mnt") + "/file"
	flags := h.Run("workload", "start", "-o", "docker", workload(h, "w", "data", ""))
	if source := field(t, flags, "source="); !mounted(h, source) {
		t.Errorf("nothing is mounted at %s, only at %q", source, h.Mounts())
	}
	d.Run(t, container(flags, "--rm", image, "sh", "-c", "echo kept > "+file)...)
	h.Run("volume", "snapshot", "create", "data", "snap")
	d.Run(t, "restart", "--time", "0", "csi-local")
	if got := d.Run(t, container(flags, "--rm", image, "cat", file)...); got != "kept\n" {
		t.Errorf("after a restart of the driver a container reads %q", got)
	}
	h.Run("workload", "stop", "w") // the stop waits until the driver is healthy again
	h.NothingInUse()
	if got := h.Run("workload", "run", h.Path("w.hcl"), "--", "cat", file); got != "kept\n" {
		t.Errorf("the next run reads %q", got)
	}
	h.NothingInUse()

	h.Run("volume", "create", h.Write("raw.hcl", volumeSpec(drivers[0], "raw", "single-node-writer", "block-device", "")))
	device := h.Path("mnt")
	if err := os.Remove(device); err != nil { // an earlier run may have left a directory
		t.Fatal(err)
	}
	raw := workload(h, "b", "raw", "")
	h.Run("workload", "run", raw, "--", "sh", "-c", "printf block | dd of="+device+" conv=notrunc status=none")
	flags = h.Run("workload", "start", "-o", "docker", raw)
	if got := d.Run(t, container(flags, "--rm", image, "head", "-c", "5", device)...); got != "block" {
		t.Errorf("a container reads %q", got)
	}
	h.Run("workload", "stop", "b")
	h.NothingInUse()
	h.Run("volume", "delete", "data")
}

// If the driver's mounts do not propagate to the host, no workload starts.
func dockerDriverAlone(t *testing.T, d *docker.Daemon) {
	h := inContainer(t, d, ":/csi:rshared", ":/csi")
	volume(h, drivers[0], "data", "single-node-writer", "")
	h.Refused(1, []string{"nothing is mounted at", "a namespace of its own", "propagation"},
		"workload", "start", workload(h, "w", "data", ""))
	h.NothingInUse()
	h.Run("volume", "delete", "data")
}

// dockerMesh runs the documented containers, with a real Envoy, of two workloads of one host.
func dockerMesh(t *testing.T, d *docker.Daemon) {
	program := envoy.Program(t, "Envoy in a container")
	m := newMesh(t, minted, "")
	m.Namespace = d.PID()
	m.open()
	d.Image(t, "envoyproxy/envoy:v1.34-latest", `ENTRYPOINT ["envoy"]`, program)
	d.Image(t, "example/web", `CMD ["sleep", "1000"]`)
	start := func(id string) {
		t.Helper()
		// Each Consul of the tests on this host gives sidecars the same ports.
		service := strings.Replace(sidecarService("web", ""), "sidecar_service {", fmt.Sprintf("sidecar_service {\n        port = %d",
			freePort(t)), 1)
		m.Write(id+".hcl", fmt.Sprintf("workload %q {\n  user = \"1000\"\n%s\n}\n", id, service))
		remove(t, d, id)
		remove(t, d, id+"-envoy")
		documented(t, m.Host, d, "consul.md", "mesh-start", "web.hcl", id+".hcl", "web-envoy", id+"-envoy", "--name web", "--name "+id)
	}
	start("web")
	start("second")
	streams := func(id string, n int) {
		t.Helper()
		m.Eventually("the container's Envoy has its listener", func() error {
			log, err := d.Try("logs", id+"-envoy")
			if got := strings.Count(log, "add/update listener 'public_listener"); err == nil && got != n {
				err = fmt.Errorf("%d times: %s", got, log)
			}
			return err
		})
	}
	streams("web", 1)
	streams("second", 1)
	d.Run(t, "rm", "--force", "second", "second-envoy")
	m.Run("workload", "stop", "second")
	secret := dockerToken(t, m, d)
	if out, err := d.Try("exec", "web", "touch", "/secrets/web/file"); err == nil || !strings.Contains(out, "Read-only") {
		t.Errorf("a container wrote into its secrets: %v, %s", err, out)
	}
	flags := m.Run("workload", "status", "-o", "docker", "web")
	if out, err := d.Try(container(flags, "--rm", "--network", "host", "--user", "1001", "example/web", "cat",
		"/secrets/web/si_token")...); err == nil || strings.Contains(out, secret) {
		t.Errorf("another user reads the token: %v", err)
	}

	// Containers see the files that the agent writes again when it starts.
	status := m.service("web")
	if out, err := m.InNamespace("rm", status.GetTokenFile(), status.GetBootstrapFile()).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	m.Stop()
	m.open()
	m.Eventually("the container has its files again", func() error {
		_, err := d.Try("exec", "web", "cat", "/secrets/web/si_token", "/secrets/web/envoy_bootstrap.json")
		return err
	})
	dockerToken(t, m, d)
	d.Run(t, "restart", "--time", "0", "web-envoy")
	streams("web", 2)

	documented(t, m.Host, d, "consul.md", "mesh-stop")
	m.nothingInMesh()
}

// dockerToken checks that the file that the container of web is configured to use contains the token that
// Consul issued for the service.
func dockerToken(t *testing.T, m *mesh, d *docker.Daemon) (secret string) {
	t.Helper()
	secret = d.Run(t, "exec", "web", "sh", "-c", `cat "$CONSUL_HTTP_TOKEN_FILE"`)
	token, _ := m.identityOf(m.service("web").GetTokenAccessor())
	if secret != token.SecretID {
		t.Error("the token in the container is not the service's")
	}
	return secret
}
