package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFindParents(t *testing.T) {
	v2 := "30 23 0:26 / %[1]s/v2 rw,nosuid - cgroup2 cgroup rw,nsdelegate\n"
	v1 := "31 23 0:27 / %[1]s/v1 rw - cgroup cgroup rw,pids\n32 23 0:28 / %[1]s/mem rw - cgroup cgroup rw,memory\n"
	for name, row := range map[string]struct {
		mounts, own  string
		files        map[string]string
		unified      string
		pids         string
		lack, enable string
	}{
		"systemd, delegated": {
			mounts: v2,
			own:    "0::/system.slice/pannier.service/pannier-agent\n",
			files: map[string]string{
				"v2/system.slice/pannier.service/cgroup.controllers":     "cpu memory pids",
				"v2/system.slice/pannier.service/cgroup.subtree_control": "memory pids",
			},
			unified: "v2/system.slice/pannier.service",
		},
		"controllers that are to be had": {
			mounts: v2, own: "0::/a\n",
			files:   map[string]string{"v2/a/cgroup.controllers": "memory pids", "v2/a/cgroup.subtree_control": "memory"},
			unified: "v2/a", enable: "v2/a/cgroup.subtree_control=+pids",
		},
		"no memory controller": {
			mounts: v2, own: "0::/a\n",
			files:   map[string]string{"v2/a/cgroup.controllers": "pids", "v2/a/cgroup.subtree_control": "pids"},
			unified: "v2/a", lack: `memory: %[1]s/v2/a does not have the controller "memory"`,
		},
		"both": {
			mounts: v2 + v1, own: "4:memory:/m\n3:pids:/p\n0::/\n",
			files:   map[string]string{"v2/cgroup.controllers": "", "v1/p/tasks": ""},
			unified: "v2", pids: "v1/p", lack: `memory: %[1]s/v2 does not have the controller "memory"`,
		},
		"v1": {
			mounts: v1, own: "3:pids:/p\n", files: map[string]string{"v1/p/tasks": ""},
			pids: "v1/p", lack: "memory: there is no cgroup v2",
		},
		"a container's part of v2": {
			mounts: "30 23 0:26 /docker/1 %[1]s/v2 rw - cgroup2 cgroup rw\n", own: "0::/docker/1/a\n",
			files:   map[string]string{"v2/a/cgroup.controllers": "", "v2/a/cgroup.subtree_control": "memory pids"},
			unified: "v2/a",
		},
		"a group that is not mounted": {
			mounts: "30 23 0:26 /docker/1 %[1]s/v2 rw - cgroup2 cgroup rw\n", own: "0::/docker/2\n",
			lack: "memory: there is no cgroup v2\nprocesses: there are no control groups",
		},
		"none": {lack: "memory: there is no cgroup v2\nprocesses: there are no control groups"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range row.files {
				if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(file)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			in := func(text string) string { return strings.ReplaceAll(text, "%[1]s", dir) }
			got := findParents([]byte(in(row.mounts)), []byte(row.own))
			for what, pair := range map[string][2]string{"unified": {got.unified, row.unified}, "pids": {got.pids, row.pids}} {
				if want := pair[1]; want != "" && pair[0] != filepath.Join(dir, want) || want == "" && pair[0] != "" {
					t.Errorf("%s is %q, want %q", what, pair[0], want)
				}
			}
			lack := ""
			if got.lack != nil {
				lack = fmt.Sprint(got.lack)
			}
			if lack != in(row.lack) {
				t.Errorf("lack is %q, want %q", lack, in(row.lack))
			}
			if file, want, ok := strings.Cut(row.enable, "="); ok {
				if data, _ := os.ReadFile(filepath.Join(dir, file)); !strings.Contains(string(data), want) {
					t.Errorf("%s was not enabled: %s", want, data)
				}
			}
		})
	}
}

func TestOutOfMemory(t *testing.T) {
	ref := Ref{Token: "T", Cgroup: filepath.Join(t.TempDir(), cgroupPrefix+"T")}
	if got := outOfMemory(ref); got != "" {
		t.Errorf("without a group: %s", got)
	}
	if err := os.Mkdir(ref.Cgroup, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{"memory.events": "low 0\noom 3\noom_kill 2\n", "memory.max": "1048576\n"} {
		if err := os.WriteFile(filepath.Join(ref.Cgroup, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := outOfMemory(ref); !strings.Contains(got, "limited to 1048576 bytes") {
		t.Errorf("got %q", got)
	}
}
