package owner

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

var id = strings.Repeat("0123456789abcdef", 4)

func TestOfAControlGroup(t *testing.T) {
	const pid = 1 // none of these names depends on it
	for group, want := range map[string]Owner{
		"":                                {"", "kill 1"},
		"/user.slice":                     {"", "kill 1"},
		"/system.slice/redis.service":     {"unit redis.service", "systemctl stop redis.service"},
		"/system.slice/redis.service/sub": {"unit redis.service", "systemctl stop redis.service"},
		"/user.slice/user-7.slice/user@7.service":                    {"", "kill 1"},
		"/system.slice/docker-" + id + ".scope":                      {"container 0123456789ab", "docker stop 0123456789ab"},
		"/docker/" + id:                                              {"container 0123456789ab", "docker stop 0123456789ab"},
		"/machine.slice/libpod-" + id + ".scope/container":           {"container 0123456789ab", "podman stop 0123456789ab"},
		"/kubepods.slice/pod1.slice/cri-containerd-" + id + ".scope": {"container 0123456789ab", ""},
		"/mine/" + id:                           {"container 0123456789ab", ""},
		"/system.slice/" + id[:63] + ".service": {"unit " + id[:63] + ".service", "systemctl stop " + id[:63] + ".service"},
	} {
		if got := Of(pid, group); got != want {
			t.Errorf("%q belongs to %+v, want %+v", group, got, want)
		}
	}
}

// The agent's own unit is not what an operator should stop.
func TestOwnUnit(t *testing.T) {
	raw, err := os.ReadFile("/proc/self/cgroup")
	check.NoError(t, err)
	for line := range strings.Lines(string(raw)) {
		group := strings.SplitN(strings.TrimSpace(line), ":", 3)[2]
		if got := Of(7, group); strings.HasPrefix(got.Stop, "systemctl") {
			t.Errorf("in its own control group %q it recommends %q", group, got.Stop)
		}
	}
}

// A container's name is found wherever its engine has its data, by the files that the engine binds into it.
func TestNameOfAContainer(t *testing.T) {
	testbin.RequireRoot(t, "names of containers, by their mounts")
	for engine, c := range map[string]struct {
		folder string // of the container
		write  func(dir string) (path, content string)
	}{
		"docker": {"containers/" + id, func(dir string) (string, string) {
			return dir + "/config.v2.json", fmt.Sprintf(`{"ID":%q,"Name":"/web","State":{}}`, id)
		}},
		"podman": {"overlay-containers/" + id, func(dir string) (string, string) {
			list, _ := json.Marshal([]map[string]any{
				{"id": "other", "names": []string{"no"}}, {"id": id, "names": []string{"web"}},
			})
			return filepath.Dir(dir) + "/containers.json", string(list)
		}},
	} {
		t.Run(engine, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), c.folder)
			check.NoError(t, os.MkdirAll(dir, 0o700))
			check.NoError(t, os.WriteFile(dir+"/hostname", nil, 0o600))
			path, content := c.write(dir)
			check.NoError(t, os.WriteFile(path, []byte(content), 0o600))
			cmd := exec.Command("unshare", "--mount", "sh", "-c",
				"mount --bind "+dir+"/hostname /etc/hostname && echo && exec cat")
			in, err := cmd.StdinPipe()
			check.NoError(t, err)
			out, err := cmd.StdoutPipe()
			check.NoError(t, err)
			check.NoError(t, cmd.Start())
			t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
			_, err = out.Read(make([]byte, 1))
			check.NoError(t, err)

			want := Owner{fmt.Sprintf(`container "web" (%s, 0123456789ab)`, engine), engine + " stop web"}
			if got := Of(cmd.Process.Pid, "/any/"+id); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
			// A name that is no name becomes no part of a command.
			check.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(content, "web", "web; reboot")), 0o600))
			if got := Of(cmd.Process.Pid, "/any/"+id); got.Stop != "" || got.Name != "container 0123456789ab" {
				t.Errorf("got %+v", got)
			}
		})
	}
}
