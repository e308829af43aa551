package cluster_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
)

// prepareMounts makes a mount namespace one in which mount(8) and umount(8) find their helpers, and keep their own
// files. It says so, and lives until its input ends: $1 is the program.
const prepareMounts = `
mount -t tmpfs -o mode=755 run /run
mount -t tmpfs -o mode=755 mnt /mnt
mkdir /mnt/data /mnt/etc /mnt/sbin /mnt/work
mount -t overlay -o lowerdir=/usr/sbin,upperdir=/mnt/sbin,workdir=/mnt/work sbin /usr/sbin
mkdir /mnt/work2
mount -t overlay -o lowerdir=/etc,upperdir=/mnt/etc,workdir=/mnt/work2 etc /etc
ln -s "$1" /usr/sbin/mount.pannier
ln -s "$1" /usr/sbin/umount.pannier
mkdir -p /etc/pannier
echo ready
exec cat
`

// mountNamespace makes a host's mount namespace. It must outlive the host.
func mountNamespace(t *testing.T) (pid int) {
	t.Helper()
	testbin.RequireRoot(t, "mount(8) on the hosts of a cluster")
	cmd := exec.Command("unshare", "--mount", "--propagation=private", "sh", "-ec", prepareMounts, "sh",
		testbin.Build(t, "host/cmd/pannier"))
	in, err := cmd.StdinPipe()
	check.NoError(t, err)
	out, err := cmd.StdoutPipe()
	check.NoError(t, err)
	var said strings.Builder
	cmd.Stderr = &said
	check.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("a mount namespace with the helpers of mount(8): %q, %v\n%s", line, err, said.String())
	}
	return cmd.Process.Pid
}

// mounter is a host on which mount(8) runs, as root's shell, fstab and systemd run it: without a token.
type mounter struct {
	*testhost.Host
	t *testing.T
}

func (m *mounter) command(args ...string) *exec.Cmd {
	cmd := m.InNamespace(args[0], args[1:]...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "PANNIER_ADDR=unix://" + m.Socket(), "LC_ALL=C"}
	return cmd
}

func (m *mounter) run(args ...string) string {
	m.t.Helper()
	out, err := m.command(args...).CombinedOutput()
	if err != nil {
		m.t.Fatalf("%s on %s: %v\n%s\n%s", strings.Join(args, " "), m.Name, err, out, m.LogTail())
	}
	return string(out)
}

// refusedMount runs a command that must end with a code of mount(8), and say some words.
func (m *mounter) refusedMount(code int, words []string, args ...string) {
	m.t.Helper()
	out, err := m.command(args...).CombinedOutput()
	exit := (*exec.ExitError)(nil)
	if !errors.As(err, &exit) || exit.ExitCode() != code {
		m.t.Errorf("%s on %s: %v, want exit code %d\n%s", strings.Join(args, " "), m.Name, err, code, out)
	}
	for _, word := range words {
		if !strings.Contains(string(out), word) {
			m.t.Errorf("%s on %s: %q is not in %s", strings.Join(args, " "), m.Name, word, out)
		}
	}
}

// held returns the node that has a claim on the volume; empty: nobody has.
func (m *mounter) held() (node string) {
	m.t.Helper()
	for _, c := range m.Claims("data") {
		node += c.GetNode()
	}
	return node
}

// grant applies the policy of docs/mount.md, and gives the host's helpers a token with it.
func (m *mounter) grant() {
	m.t.Helper()
	raw, err := os.ReadFile(filepath.Join(testbin.Root(), "docs/mount.md"))
	check.NoError(m.t, err)
	policy := regexp.MustCompile("(?s)<!-- policy: mount -->\n```hcl\n(.*?)```").FindSubmatch(raw)
	if policy == nil {
		m.t.Fatal("docs/mount.md has no policy")
	}
	m.Run("acl", "policy", "apply", "mount", m.Write("mount.hcl", string(policy[1])))
	out := m.Run("acl", "token", "create", "-name", "mount", "-policy", "mount")
	secret := regexp.MustCompile(`(?m)^Secret +(\S+)$`).FindStringSubmatch(out)
	if secret == nil {
		m.t.Fatalf("no secret in %s", out)
	}
	cmd := m.command("sh", "-c", "umask 077; cat >/etc/pannier/mount.token")
	cmd.Stdin = strings.NewReader(secret[1])
	check.NoError(m.t, cmd.Run())
}

// TestMountOnTwoHosts mounts one volume on two hosts of a cluster with ACLs: the second waits until the first has
// unmounted it, and no process can write any more.
func TestMountOnTwoHosts(t *testing.T) {
	t.Parallel()
	namespaces := []int{mountNamespace(t), mountNamespace(t)}
	c := testcluster.New(t, testcluster.Options{
		Servers: 1, Nodes: 2, Config: quickVotes + "\nacl {\n  enabled = true\n}\n", ServerConfig: longLeases,
	})
	server, one, two := c.Host("server-1"), &mounter{c.Host("node-1"), t}, &mounter{c.Host("node-2"), t}
	one.Namespace, two.Namespace = namespaces[0], namespaces[1]
	server.Begin()
	secret := ""
	server.Eventually("the first token is there", func() error {
		r := server.Try("acl", "bootstrap", "-o", "json")
		found := regexp.MustCompile(`"secret": *"([^"]+)"`).FindStringSubmatch(r.Stdout)
		if found == nil {
			return errors.New(r.Stdout + r.Stderr)
		}
		secret = found[1]
		return nil
	})
	for _, h := range c.Hosts {
		h.Token = secret
	}
	one.Begin()
	two.Begin()
	for _, h := range c.Hosts {
		h.AwaitReady()
		h.AwaitDrivers()
	}
	c.Volume(server, "data", "single-node-writer")
	mount := []string{"mount", "-t", "pannier", "pannier:data", "/mnt/data"}

	one.refusedMount(32, []string{"/etc/pannier/mount.token"}, mount...)
	one.grant()
	two.grant()
	one.run(mount...)
	if one.held() != "node-1" {
		t.Fatalf("it is mounted on node-1, and %q has it", one.held())
	}
	two.refusedMount(32, []string{
		"not within 1s", `workload "mount.mnt-data.node-1" on node "node-1" (write, taken, `,
		"pannier volume explain -namespace default data",
	}, "mount", "-t", "pannier", "-o", "timeout=1", "pannier:data", "/mnt/data")

	// waits mounts on another host, in the background, and returns when that has been refused once.
	waits := func(on *mounter) (ended chan error) {
		t.Helper()
		cmd := on.command(mount...)
		said, err := cmd.StderrPipe()
		check.NoError(t, err)
		check.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		text := bufio.NewReader(said)
		if line, err := text.ReadString('\n'); !strings.Contains(line, "waiting for at most 1m40s") {
			t.Fatalf("mount on %s says %q, %v", on.Name, line, err)
		}
		ended = make(chan error, 1)
		go func() {
			rest, _ := io.ReadAll(text)
			err := cmd.Wait()
			if err != nil {
				err = fmt.Errorf("%w: %s", err, rest)
			}
			ended <- err
		}()
		return ended
	}
	unmounted := waits(two)
	if out := one.run("umount", "/mnt/data"); out != "" {
		t.Errorf("umount says %s", out)
	}
	check.NoError(t, outcome(t, unmounted))
	if two.held() != "node-2" {
		t.Errorf("it is mounted on node-2, and %q has it", two.held())
	}
	two.run("sh", "-c", "echo two >/mnt/data/file")

	// Processes go on with what was unmounted lazily, by an open file, a directory or a mapped file. The file system is
	// one of which other mounts exist: the claim is all that keeps node-1 away.
	for name, use := range map[string]string{
		"file":      `exec sleep 1000 >>/mnt/data/file`,
		"directory": `cd /mnt/data && exec sleep 1000`,
		"program":   `cp "$(command -v sleep)" /mnt/data/program && exec /mnt/data/program 1000`,
	} {
		user := two.command("sh", "-c", use)
		check.NoError(t, user.Start())
		t.Cleanup(func() { _ = user.Process.Kill() })
		two.Eventually("it is used", func() error {
			raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", user.Process.Pid))
			if comm := strings.TrimSpace(string(raw)); comm != "sleep" && comm != "program" {
				return errors.Join(err, fmt.Errorf("it is %s", comm))
			}
			return nil
		})
		two.run("umount", "-l", "/mnt/data")
		said := ""
		two.Eventually("the release waits for the process ("+name+")", func() error {
			said = two.Run("volume", "explain", "data")
			if !strings.Contains(said, fmt.Sprintf("process %d (", user.Process.Pid)) {
				return errors.New(said)
			}
			return nil
		})
		if !strings.Contains(said, "it is unmounted, but still in use by") || !strings.Contains(said, fmt.Sprintf("kill %d", user.Process.Pid)) {
			t.Errorf("%s: %s", name, said)
		}
		moved := waits(one)
		if name == "file" { // what is known of the mount is in the journal
			two.Kill()
			two.Launch()
		}
		select {
		case err := <-moved:
			t.Errorf("%s: it is mounted on node-1, while a process of node-2 can write: %v", name, err)
		case <-time.After(2 * time.Second): // the release is tried several times
		}
		check.NoError(t, unix.Kill(user.Process.Pid, unix.SIGKILL))
		_ = user.Wait()
		if name != "file" { // else it is noticed by itself
			two.Run("workload", "stop", "mount.mnt-data.node-2")
		}
		check.NoError(t, outcome(t, moved))
		one.run("umount", "/mnt/data")
		two.run(mount...)
	}
	two.run("umount", "/mnt/data")
	if holder := two.held(); holder != "" {
		t.Errorf("it is unmounted, and %q has it", holder)
	}
}
