package dockervolume

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/docpages"
)

// TestDocker gives volumes to containers of a real dockerd, all on one host.
func TestDocker(t *testing.T) {
	t.Parallel()
	r := start(t)
	for _, test := range []struct {
		name string
		run  func(t *testing.T, r *rig)
	}{
		{"docs", commandsOfDocs},
		{"compose", compose},
		{"compose recipe", composeRecipe},
		{"create and remove", createAndRemove},
		{"of the ledger", ofTheLedger},
		{"run", run},
		{"image content", imageContent},
		{"copy while running", copyWhileRunning},
		{"refusal", refusal},
		{"read-only", readOnly},
		{"anonymous", anonymousVolume},
		{"stop without the plugin", stopWithoutPlugin},
		{"plugin killed", pluginKilled},
		{"engine restarted", engineRestarted},
		{"engine killed", engineKilled},
		{"engine stalled", engineStalled},
	} {
		if !t.Run(test.name, func(t *testing.T) {
			r.Use(t)
			test.run(t, r)
		}) {
			t.FailNow() // what is left of it would mislead the next
		}
	}
}

// mkvolume creates a volume that is deleted with `docker volume rm`.
func (r *rig) mkvolume(t *testing.T, name string, options ...string) {
	t.Helper()
	args := []string{"volume", "create", "--driver", "pannier", "--opt", "size=16MiB", "--opt", "delete=true"}
	for _, o := range options {
		args = append(args, "--opt", o)
	}
	r.docker(t, append(args, name)...)
	t.Cleanup(func() { _, _ = r.Daemon.Try("volume", "rm", name) })
}

// rm removes a container when the test ends, if it still exists.
func (r *rig) rm(t *testing.T, name string) {
	t.Cleanup(func() { _, _ = r.Daemon.Try("rm", "--force", name) })
}

// The commands of docs/docker.md.
func commandsOfDocs(t *testing.T, r *rig) {
	script := strings.NewReplacer("alpine", image, "1GiB", "16MiB").Replace(
		docpages.Block(t, "docker.md", "run", "docker"))
	cmd := exec.Command("sh", "-ec", script)
	cmd.Env = r.Daemon.Command().Env
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "kept\n") {
		t.Fatalf("docs/docker.md: %v\n%s\n%s", err, out, r.LogTail())
	}
	r.Host.Run("volume", "delete", "-namespace", space, "data")
}

// The compose file of docs/docker.md, without a network, which the engine does not have.
func compose(t *testing.T, r *rig) {
	if _, err := exec.LookPath("docker-compose"); err != nil {
		t.Skip("needs docker-compose (Debian: docker-compose); not covered: volumes of compose files")
	}
	project := strings.NewReplacer("postgres\n", image+"\n", "10GiB", "16MiB").Replace(
		docpages.Block(t, "docker.md", "config", "compose"))
	files := []string{
		"--project-name", "shop", "--file", r.Write("compose.yaml", project),
		"--file", r.Write("network.yaml", "services: {db: {network_mode: none}}\n"),
	}
	do := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("docker-compose", append(files, args...)...)
		cmd.Env = r.Daemon.Command().Env
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("docker-compose %s: %v\n%s\n%s", strings.Join(args, " "), err, out, r.LogTail())
		}
		return string(out)
	}
	const file = "/var/lib/postgresql/data/file"
	do("up", "--detach")
	r.rm(t, "shop_db_1")
	r.held(t, "shop_data")
	do("exec", "-T", "db", "sh", "-c", "echo kept >"+file)
	do("down", "--timeout", "0")
	r.awaitFree(t, "shop_data")
	do("up", "--detach")
	if got := do("exec", "-T", "db", "cat", file); got != "kept\n" {
		t.Errorf("after down and up the file has %q", got)
	}
	do("down", "--volumes", "--timeout", "0")
	r.awaitFree(t, "shop_data")
	if got := r.docker(t, "volume", "ls", "--quiet"); got != "" {
		t.Errorf("after down --volumes there are %q", got)
	}
	r.Host.Run("volume", "delete", "-namespace", space, "shop_data")
}

// ofTheLedger gives a container a volume that this dockerd has not heard of, by its name alone, until it is forgotten.
func ofTheLedger(t *testing.T, r *rig) {
	r.Host.Run("volume", "create", r.Write("ours.hcl", `
id        = "ours"
namespace = "docker"
type      = "csi"
plugin_id = "local"
capacity_min = "16MiB"
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}`))
	if got := r.docker(t, "volume", "ls", "--quiet", "--filter", "driver=pannier"); got != "ours\n" {
		t.Errorf("the volumes are %q", got)
	}
	r.docker(t, "run", "--rm", "-v", "ours:/data", image, "sh", "-c", "echo kept >/data/file")
	r.awaitFree(t, "ours")
	if got := r.inspect(t, "ours", ".Driver"); got != "pannier" {
		t.Errorf("its driver is %q", got)
	}
	r.docker(t, "volume", "rm", "ours")
	if got := r.docker(t, "volume", "ls", "--quiet"); got != "" {
		t.Errorf("it is forgotten, and the volumes are %q", got)
	}
	r.docker(t, "run", "--rm", "-v", "ours:/data", image, "test", "!", "-e", "/data/file") // another one, of the local driver
	r.docker(t, "volume", "rm", "ours")
	r.docker(t, "volume", "create", "-d", "pannier", "ours")
	if got := r.docker(t, "run", "--rm", "-v", "ours:/data", image, "cat", "/data/file"); got != "kept\n" {
		t.Errorf("the file has %q", got)
	}
	r.awaitFree(t, "ours")
	r.docker(t, "volume", "rm", "ours")
	r.Host.Run("volume", "delete", "-namespace", space, "ours")
}

func createAndRemove(t *testing.T, r *rig) {
	r.refused(t, []string{`"colour"`, "known are driver, size"}, "volume", "create", "-d", "pannier", "-o", "colour=red", "v")
	r.refused(t, []string{`"size"`, `"big"`}, "volume", "create", "-d", "pannier", "-o", "size=big", "v")
	r.docker(t, "volume", "create", "-d", "pannier", "-o", "size=16MiB", "v")
	r.docker(t, "volume", "create", "-d", "pannier", "-o", "size=16MiB", "v") // again
	if got := r.docker(t, "volume", "ls", "--quiet", "--filter", "driver=pannier"); got != "v\n" {
		t.Errorf("the volumes are %q", got)
	}
	if got := r.inspect(t, "v", ".Scope") + " " + r.inspect(t, "v", ".Status.workload"); got != "global docker-volume.v.a" {
		t.Errorf("inspect says %q", got)
	}
	r.docker(t, "volume", "rm", "v")
	if got := r.docker(t, "volume", "ls", "--quiet"); got != "" {
		t.Errorf("after its removal there are %q", got)
	}
	r.Host.Run("volume", "status", "-namespace", space, "v") // its data is kept
	r.Host.Run("volume", "expand", "-namespace", space, "v", "32MiB")
	r.refused(t, []string{"capacity_min"}, "volume", "create", "-d", "pannier", "-o", "size=64MiB", "v")
	r.docker(t, "volume", "create", "-d", "pannier", "-o", "size=16MiB", "-o", "delete=true", "v") // it has at least that
	r.docker(t, "volume", "rm", "v")
	r.Refused(3, []string{"not registered"}, "volume", "status", "-namespace", space, "v")
}

func run(t *testing.T, r *rig) {
	r.mkvolume(t, "data")
	r.docker(t, "run", "--rm", "-v", "data:/data", image, "sh", "-c", "echo kept > /data/file")
	if got := r.docker(t, "run", "--rm", "--mount",
		"type=volume,volume-driver=pannier,source=data,destination=/data", image, "cat", "/data/file"); got != "kept\n" {
		t.Errorf("the second container reads %q", got)
	}
	r.awaitFree(t, "data")
	r.NothingInUse()
	r.rm(t, "c1")
	r.rm(t, "d1")
	for _, name := range []string{"c1", "d1"} {
		r.docker(t, "run", "--detach", "--name", name, "-v", "data:/data", image)
	}
	r.awaitSeen(t, "data", 2)
	if status := r.Host.Run("workload", "status", "-namespace", space, "docker-volume.data.a"); !strings.Contains(status,
		`container "c1" (docker`) || !strings.Contains(status, "docker stop d1") {
		t.Errorf("the status does not name the containers:\n%s", status)
	}
	r.docker(t, "rm", "--force", "c1")
	r.awaitSeen(t, "data", 1)
	r.held(t, "data")
	r.docker(t, "exec", "d1", "cat", "/data/file")
	r.docker(t, "rm", "--force", "d1")
	r.awaitFree(t, "data")
}

// The content of the image is copied into an empty volume: Docker mounts, unmounts and mounts it. A file system that
// has lost+found is not empty.
func imageContent(t *testing.T, r *rig) {
	r.rm(t, "base")
	r.docker(t, "run", "--name", "base", image, "sh", "-c", "busybox mkdir /data && echo content > /data/file")
	r.docker(t, "commit", "base", "content")
	r.mkvolume(t, "fresh")
	for _, c := range []struct{ command, want string }{
		{"cat /data/file", "content\n"},
		{"echo changed >/data/file", ""},
		{"cat /data/file", "changed\n"}, // not copied again
	} {
		if got := r.docker(t, "run", "--rm", "-v", "fresh:/data", "content", "sh", "-c", c.command); got != c.want {
			t.Errorf("%s: got %q, want %q", c.command, got, c.want)
		}
	}
	r.awaitFree(t, "fresh")
}

// docker cp mounts with the id of the container.
func copyWhileRunning(t *testing.T, r *rig) {
	r.mkvolume(t, "data")
	r.rm(t, "c1")
	r.docker(t, "run", "--detach", "--name", "c1", "-v", "data:/data", image)
	r.awaitSeen(t, "data", 1)
	file := r.Write("copied", "copied")
	r.docker(t, "cp", file, "c1:/data/copied")
	r.awaitSeen(t, "data", 1)
	if got := r.docker(t, "exec", "c1", "cat", "/data/copied"); got != "copied" {
		t.Errorf("the container reads %q", got)
	}
	r.held(t, "data")
	r.docker(t, "stop", "--time", "0", "c1")
	r.docker(t, "cp", "c1:/data/copied", r.Path("back"))
	if raw, err := os.ReadFile(r.Path("back")); err != nil || string(raw) != "copied" {
		t.Errorf("copied back: %q, %v", raw, err)
	}
	r.awaitFree(t, "data")
}

func refusal(t *testing.T, r *rig) {
	r.mkvolume(t, "data")
	r.Host.Run("workload", "start", r.Write("w.hcl", `
workload "other" {
  namespace = "docker"
  volume "data" {
    source      = "data"
    destination = "/data"
  }
}
`))
	words := []string{
		`workload "other" on node "a" has it since 2`,
		"pannier workload stop -namespace docker other", `on node "a"`,
	}
	r.refused(t, words, "run", "--rm", "-v", "data:/data", image, "touch", "/data/file")
	r.Host.Run("workload", "stop", "-namespace", space, "other")
	r.docker(t, "run", "--rm", "-v", "data:/data", image, "touch", "/data/file")
	r.awaitFree(t, "data")
}

func readOnly(t *testing.T, r *rig) {
	r.mkvolume(t, "ro", "read_only=true")
	if out, err := r.Daemon.Try("run", "--rm", "-v", "ro:/data", image, "touch", "/data/file"); err == nil ||
		!strings.Contains(out, "Read-only") {
		t.Errorf("a write gave %v: %s", err, out)
	}
	r.awaitFree(t, "ro")
}

// A volume without a name goes with its container. Its data is kept, whatever the options say.
func anonymousVolume(t *testing.T, r *rig) {
	r.rm(t, "c1")
	r.docker(t, "run", "--detach", "--name", "c1", "--mount",
		"type=volume,volume-driver=pannier,destination=/data,volume-opt=delete=true,volume-opt=size=16MiB", image)
	name := strings.TrimSpace(r.docker(t, "inspect", "--format", "{{(index .Mounts 0).Name}}", "c1"))
	r.docker(t, "rm", "--force", "--volumes", "c1")
	if got := r.docker(t, "volume", "ls", "--quiet"); got != "" {
		t.Errorf("the volumes are %q", got)
	}
	r.awaitFree(t, name)
	r.Host.Run("volume", "delete", "-namespace", space, name)
}

// A container that ends while the plugin is away is never reported.
func stopWithoutPlugin(t *testing.T, r *rig) {
	r.mkvolume(t, "data")
	r.rm(t, "c1")
	r.docker(t, "run", "--detach", "--name", "c1", "-v", "data:/data", image)
	r.awaitSeen(t, "data", 1)
	r.Stop() // and the plugin with it
	r.docker(t, "rm", "--force", "c1")
	r.Start()
	r.awaitFree(t, "data")
}

// The Mounts are known to the next process.
func pluginKilled(t *testing.T, r *rig) {
	r.mkvolume(t, "data")
	r.rm(t, "c1")
	r.docker(t, "run", "--detach", "--name", "c1", "-v", "data:/data", image)
	r.awaitSeen(t, "data", 1)
	r.killPlugin(t)
	r.awaitSeen(t, "data", 1)
	r.held(t, "data")
	r.docker(t, "rm", "--force", "c1")
	r.awaitFree(t, "data")
}

// killPlugin kills the plugin's process and waits for the next one.
func (r *rig) killPlugin(t *testing.T) {
	t.Helper()
	was := r.pluginPID(t)
	p, err := os.FindProcess(was)
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
	r.Eventually("another process of the plugin serves", func() error {
		if now := r.pluginPID(t); now == was || now == 0 {
			return errors.New("not yet")
		}
		return nil
	})
}

func (r *rig) pluginPID(t *testing.T) int {
	t.Helper()
	s, err := r.Status()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range s.GetPlugins() {
		if p.GetName() == plugin && p.GetState() == "running" {
			return int(p.GetPid())
		}
	}
	return 0
}

// With live-restore the containers run on, and dockerd does not say afterwards that they have ended.
func engineRestarted(t *testing.T, r *rig) {
	r.mkvolume(t, "data")
	r.rm(t, "c1")
	r.docker(t, "run", "--detach", "--name", "c1", "-v", "data:/data", image)
	r.awaitSeen(t, "data", 1)
	r.Restart(t)
	r.docker(t, "exec", "c1", "touch", "/data/file")
	r.held(t, "data")
	r.docker(t, "rm", "--force", "c1")
	r.awaitFree(t, "data")
}

// A dockerd that is stopped (SIGSTOP) holds what it holds. The agent answers meanwhile.
// engineKilled kills dockerd while it starts a container, which waits for its second volume: the first is released when
// dockerd is back, although nobody unmounts it.
func engineKilled(t *testing.T, r *rig) {
	r.mkvolume(t, "first")
	r.mkvolume(t, "second")
	r.rm(t, "c1")
	r.Host.Run("workload", "start", r.Write("second.hcl", `
workload "other" {
  namespace = "docker"
  volume "data" {
    source      = "second"
    destination = "/data"
  }
}`))
	for mounted := false; !mounted; { // dockerd mounts them in any order, and gives up when the second is refused
		_, _ = r.Daemon.Try("rm", "--force", "c1")
		waits := r.Daemon.Command("run", "--detach", "--name", "c1", "-v", "first:/first", "-v", "second:/second", image)
		if err := waits.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { _ = waits.Wait(); close(ended) }() // with an error in any case
		r.Eventually("the first volume is mounted, or the second is refused", func() error {
			select {
			case <-ended:
				return nil
			default:
			}
			mounted = r.inspect(t, "first", ".Status.mounts") == "1" && r.inspect(t, "first", ".Mountpoint") != ""
			if mounted {
				return nil
			}
			return errors.New("neither")
		})
		if mounted {
			r.Crash(t)
		}
		<-ended
	}
	r.awaitFree(t, "first")
	r.Host.Run("workload", "stop", "-namespace", space, "other")
}

func engineStalled(t *testing.T, r *rig) {
	r.mkvolume(t, "stalled")
	r.docker(t, "run", "--detach", "--name", "stalled", "-v", "stalled:/data", image)
	r.rm(t, "stalled")
	agent := r.Host.PID()
	goOn := r.Stall(t)
	for _, args := range [][]string{{"status"}, {"workload", "status"}, {"doctor", "-config", r.Config}} {
		got := r.Host.Try(args...)
		if got.Code != 0 {
			t.Errorf("pannier %v: exit code %d\n%s%s", args, got.Code, got.Stdout, got.Stderr)
		}
	}
	r.held(t, "stalled")
	goOn()
	r.docker(t, "rm", "--force", "stalled")
	r.awaitFree(t, "stalled")
	if now := r.Host.PID(); !r.Alive() || now != agent {
		t.Errorf("the agent was process %d and is %d", agent, now)
	}
}
