package doctor

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/pannier/pannier/host/internal/config/mountunits"
	"github.com/pannier/pannier/host/internal/system/mountuse"
	"github.com/pannier/pannier/internal/printable"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

type mountInfo = mountinfo.Info

// mountTable has this process's mounts; a later one is on top.
type mountTable []*mountInfo

// of returns the mount that a path is on, or will be.
func (t mountTable) of(path string) *mountInfo {
	var best *mountInfo
	for _, m := range t {
		if mountuse.Within(path, m.Mountpoint) && (best == nil || len(m.Mountpoint) >= len(best.Mountpoint)) {
			best = m
		}
	}
	return best
}

// copies are the places outside of a folder where what is mounted at a path is mounted too.
func (t mountTable) copies(path, outside string) (places []string) {
	for _, published := range t {
		if published.Mountpoint != path {
			continue
		}
		for _, m := range t {
			if mountuse.Shows(m, published) && !mountuse.Within(m.Mountpoint, outside) {
				places = append(places, m.Mountpoint)
			}
		}
		break
	}
	return places
}

func (t mountTable) uses(device string) bool {
	return slices.ContainsFunc(t, func(m *mountInfo) bool { return m.Source == device })
}

// fileSystems that volumes are mounted with, or ask for.
func (p *Patient) fileSystems(ctx context.Context) []string {
	used := map[string]bool{}
	for _, m := range p.mounts {
		if mountuse.Within(m.Mountpoint, p.dataDir()) {
			used[m.FSType] = true
		}
	}
	if p.status != nil {
		// A page shows what is usual here: there may be a hundred thousand.
		if resp, err := p.Client.Volumes.ListVolumes(ctx, &hostv1.ListVolumesRequest{PerPage: 1000}); err == nil {
			for _, v := range resp.GetVolumes() {
				used[v.GetSpec().GetMountOptions().GetFsType()] = true
			}
		}
	}
	var known []string
	for name := range toolsOf {
		if used[name] || name == "ext4" { // what csi-local formats with unless asked otherwise
			known = append(known, name)
		}
	}
	slices.Sort(known)
	return known
}

// hungPatience bounds a look at a mount.
const hungPatience = 2 * time.Second

// hungMounts are those whose server does not answer. A child looks, since a look at one cannot be ended.
func (p *Patient) hungMounts(ctx context.Context) []Finding {
	var problems []Finding
	for _, m := range p.mounts {
		if !mountuse.Remote(m.FSType) || !mountuse.Within(m.Mountpoint, p.dataDir()) {
			continue
		}
		if err := statfs(ctx, m.Mountpoint); err != nil {
			problems = append(problems, one(Fail, fmt.Sprintf("%s (%s, %s): %v", m.Mountpoint, m.Source, m.FSType, err),
				"pannier workload status  # then stop the one that has it")...)
		}
	}
	return or(problems, "no mount of a network's file system or of FUSE hangs")
}

// statfs asks a mount for its size.
func statfs(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, hungPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "stat", "-f", "--", path)
	cmd.WaitDelay = time.Millisecond // a process in the kernel does not end when it is killed
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return fmt.Errorf("it does not answer within %s", hungPatience)
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (p *Patient) mountUnits(context.Context) []Finding {
	return checkMountUnits("/", mountunits.GeneratorDir)
}

// checkMountUnits: a line of fstab without _netdev is mounted before the network and the agent are up
// (systemd.mount(5)), and so is a unit without the generator's drop-in.
func checkMountUnits(root, generated string) []Finding {
	all, err := mountunits.Find(root)
	if err != nil {
		return one(Fail, err.Error(), "")
	}
	var problems []Finding
	for _, u := range all {
		if slices.Contains(u.Options, "noauto") {
			continue
		}
		if u.Early() {
			problems = append(problems, one(Warn, fmt.Sprintf("%s:%d: %s lacks the option _netdev: the boot does not wait for the"+
				" agent", u.File, u.Line, u.Name), fmt.Sprintf("${EDITOR:-vi} +%d %s", u.Line, u.File))...)
		} else if _, err := os.Stat(u.DropIn(generated)); err != nil {
			problems = append(problems, one(Warn, fmt.Sprintf("%s (%s) has not the order that pannier-generator gives it: the boot"+
				" does not wait for the agent", u.Name, u.File), "ln -sf /usr/bin/pannier "+mountunits.Generator+
				" && systemctl daemon-reload")...)
		}
	}
	return or(problems, "%s with volumes", printable.Count(len(all), "mount unit"))
}
