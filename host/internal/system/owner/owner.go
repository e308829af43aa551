// Package owner says whom a process belongs to, by the name that people know: a container or a systemd unit. It only
// reads files, and asks no container engine.
package owner

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"

	"github.com/pannier/pannier/internal/procfs"
)

// Owner is what a process belongs to.
type Owner struct {
	Name string // such as container "web" (docker, 0123456789ab), or unit web.service; empty: nothing with a name
	Stop string // the command that ends it
}

// containerID is in the control groups of containers, such as /docker/ID, docker-ID.scope, libpod-ID.scope.
var containerID = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?:([a-z][a-z-]*)[-/])?([0-9a-f]{64})(?:\.scope)?(?:/|$)`)
})

// shortID is how many digits of a container's id its engine shows.
const shortID = 12

// Of returns the owner of a process in a control group.
func Of(pid int, group string) Owner {
	if m := containerID().FindStringSubmatch(group); m != nil {
		return container(pid, m[1], m[2])
	}
	own, _ := os.ReadFile(procfs.Dir(os.Getpid()) + "/cgroup")
	unit := unitOf(group)
	if unit == "" || strings.Contains(string(own), group) { // stopping the agent's own unit would not help
		return Owner{Stop: fmt.Sprintf("kill %d", pid)}
	}
	return Owner{Name: "unit " + unit, Stop: "systemctl stop " + unit}
}

// goodUnit matches the names of services (man 5 systemd.unit). The name becomes part of a command.
var goodUnit = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9:_.\\@][a-zA-Z0-9:_.\\@-]*\.service$`) })

// IsUnit reports whether name is the full name of a service of systemd.
func IsUnit(name string) bool { return len(name) <= maxUnit && goodUnit().MatchString(name) }

// maxUnit is the longest name of a unit (man 5 systemd.unit).
const maxUnit = 255

// unitOf returns the system's service that a control group belongs to; empty: none. Below a user's own service manager,
// users name control groups as they like.
func unitOf(group string) string {
	for part := range strings.SplitSeq(group, "/") {
		if strings.HasPrefix(part, "user@") {
			return ""
		}
		if goodUnit().MatchString(part) {
			return part
		}
	}
	return ""
}

// container names a container of an engine that the control group names; that may be any word, with a parent of the
// operator's choice.
func container(pid int, engine, id string) Owner {
	dirs := folders(pid, id)
	for _, dir := range append(dirs, "/var/lib/docker/containers/"+id) {
		if name := dockerName(filepath.Join(dir, "config.v2.json"), id); name != "" {
			return named(name, "docker", id)
		}
	}
	lists := []string{"/var/lib/containers/storage/overlay-containers/containers.json"}
	for _, dir := range dirs {
		lists = append(lists, filepath.Join(filepath.Dir(dir), "containers.json"))
	}
	for _, list := range lists {
		if name := podmanName(list, id); name != "" {
			return named(name, "podman", id)
		}
	}
	o := Owner{Name: "container " + id[:shortID]}
	switch engine {
	case "docker":
		o.Stop = "docker stop " + id[:shortID]
	case "libpod":
		o.Stop = "podman stop " + id[:shortID]
	}
	return o
}

func named(name, engine, id string) Owner {
	return Owner{
		Name: fmt.Sprintf("container %q (%s, %s)", name, engine, id[:shortID]),
		Stop: engine + " stop " + name,
	}
}

// goodName matches the names that docker and podman accept. The name becomes part of a command.
var goodName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`) })

// dockerName reads a container's name from what dockerd keeps of it.
func dockerName(path, id string) string {
	var c struct{ ID, Name string }
	raw, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(raw, &c) != nil || c.ID != id {
		return ""
	}
	name := strings.TrimPrefix(c.Name, "/")
	if !goodName().MatchString(name) {
		return ""
	}
	return name
}

// podmanName reads a container's name from podman's list of all.
func podmanName(path, id string) string {
	var all []struct {
		ID    string   `json:"id"`
		Names []string `json:"names"`
	}
	raw, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(raw, &all) != nil {
		return ""
	}
	for _, c := range all {
		if c.ID == id && len(c.Names) > 0 && goodName().MatchString(c.Names[0]) {
			return c.Names[0]
		}
	}
	return ""
}

// folders returns the folders of a container where its engine keeps the files that it binds into each, such as
// /etc/hosts: as paths of this process, wherever the engine has its data.
func folders(pid int, id string) (dirs []string) {
	theirs, err := mountsOf(procfs.Dir(pid))
	if err != nil {
		return nil
	}
	ours, err := mountsOf(procfs.Dir(os.Getpid()))
	if err != nil {
		return nil
	}
	for _, m := range theirs {
		at := strings.Index(m.Root, "/"+id+"/")
		if at < 0 {
			continue
		}
		root := m.Root[:at+1+len(id)] // in its file system
		for _, o := range ours {
			if o.Major != m.Major || o.Minor != m.Minor {
				continue
			}
			rel, err := filepath.Rel(o.Root, root)
			if dir := filepath.Join(o.Mountpoint, rel); err == nil && filepath.IsLocal(rel) && !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs
}

func mountsOf(dir string) ([]*mountinfo.Info, error) {
	f, err := os.Open(dir + "/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return mountinfo.GetMountsFromReader(f, nil)
}
