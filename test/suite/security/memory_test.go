package security_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

// user is an unprivileged one.
const user = 65534

// asUser prepares a program of the user, that dumps core if it may.
func asUser(dir, program string, args ...string) *exec.Cmd {
	cmd := exec.Command("/bin/sh", append([]string{"-c", `ulimit -c unlimited && exec "$0" "$@"`, program}, args...)...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "GOTRACEBACK=crash", "SECRET=in-the-environment"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	return cmd
}

// publicCopy copies a program to where every user can run it.
func publicCopy(t *testing.T, from, to string) {
	t.Helper()
	check.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
	in, err := os.Open(from)
	check.NoError(t, err)
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	check.NoError(t, err)
	_, err = io.Copy(out, in)
	check.NoError(t, err)
	check.NoError(t, out.Close())
}

// spied tries to read a process's memory and environment as its own user, and returns what could be read.
func spied(pid int) (read []string) {
	for what, script := range map[string]string{
		"environment":   "cat /proc/%d/environ >/dev/null",
		"memory layout": "cat /proc/%d/maps >/dev/null",
		"memory":        "exec 3</proc/%d/mem",
		"files":         "ls -l /proc/%d/fd/ | grep -q .",
	} {
		if asUser("/", "/bin/sh", "-ec", fmt.Sprintf(script, pid)).Run() == nil {
			read = append(read, what)
		}
	}
	return read
}

// A process of the same user, such as a workload that runs as a plugin's user, does not read the memory of the agent,
// its plugins and the fence, where keys and tokens are. Nor do they leave it in a core file when they crash.
func TestMemoryStaysPrivate(t *testing.T) {
	testbin.RequireRoot(t, "processes of another user")
	bin, err := os.MkdirTemp("", "sec")
	check.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(bin) })
	check.NoError(t, os.Chmod(bin, 0o755))
	program := bin + "/pannier-agent"
	publicCopy(t, testbin.Build(t, "host/cmd/pannier-agent"), program)
	publicCopy(t, testbin.Build(t, "host/cmd/pannier"), bin+"/pannier")
	publicCopy(t, testbin.Build(t, "drivers/csi-local"), bin+"/csi-local")
	publicCopy(t, testbin.Build(t, "plugins/csi-bridge"), bin+"/plugins/csi-bridge")
	home := bin + "/home"
	check.NoError(t, os.MkdirAll(home+"/fence", 0o700))
	for _, dir := range []string{home, home + "/fence"} {
		check.NoError(t, os.Chown(dir, user, user))
	}
	start := func(args ...string) *exec.Cmd {
		t.Helper()
		cmd := asUser(home, program, args...)
		log, err := os.Create(filepath.Join(bin, args[0]+".log"))
		check.NoError(t, err)
		defer log.Close()
		cmd.Stdout, cmd.Stderr = log, log
		check.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			if text, _ := os.ReadFile(log.Name()); t.Failed() {
				t.Logf("%s:\n%.4000s", args[0], text)
			}
		})
		return cmd
	}

	agent := start("-dev", "-data-dir", home+"/data", "-http-port", "0")
	var plugins struct {
		Plugins []struct {
			Pid int
		}
	}
	check.Eventually(t, "the agent is up", func() bool {
		out, err := asUser("/", bin+"/pannier", "plugin", "status", "-o", "json", "-address",
			"unix://"+home+"/data/pannier.sock").Output()
		return err == nil && json.Unmarshal(out, &plugins) == nil && len(plugins.Plugins) == 1 && plugins.Plugins[0].Pid > 0
	})
	fence := start("fence", "-dir", home+"/fence")
	check.Eventually(t, "the fence is up", func() bool {
		_, err := os.Stat(home + "/fence/fence.sock")
		return err == nil
	})

	ordinary := asUser("/", "/bin/sleep", "1000")
	check.NoError(t, ordinary.Start())
	t.Cleanup(func() { _ = ordinary.Process.Kill(); _ = ordinary.Wait() })
	check.Eventually(t, "an ordinary process can be read", func() bool { return len(spied(ordinary.Process.Pid)) == 4 })
	for name, pid := range map[string]int{
		"the agent": agent.Process.Pid, "the fence": fence.Process.Pid, "a plugin": plugins.Plugins[0].Pid,
	} {
		if read := spied(pid); len(read) > 0 {
			t.Errorf("%s: another process of its user reads its %s", name, strings.Join(read, ", "))
		}
		limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
		check.NoError(t, err)
		if text := strings.Join(strings.Fields(string(limits)), " "); !strings.Contains(text, "Max core file size 0 0 bytes") {
			t.Errorf("%s: may leave a core file", name)
		}
	}
	for name, cmd := range map[string]*exec.Cmd{"the agent": agent, "the fence": fence} {
		check.NoError(t, cmd.Process.Signal(syscall.SIGABRT))
		_ = cmd.Wait() // it has crashed
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.CoreDump() {
			t.Errorf("%s: %v; its memory is in a core file", name, cmd.ProcessState)
		}
	}
	if left, err := filepath.Glob(home + "/core*"); err != nil || len(left) > 0 {
		t.Errorf("core files %v are left: %v", left, err)
	}
}
