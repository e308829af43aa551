package supervisor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pannier/pannier/host/internal/managed"
)

// A plugin's identity is its kind without the version, and the name that its process reports, such as
// "storage/csi-bridge", whatever its file is called. Two plugins never run with one identity, because both would
// think that they alone have what it stands for: a device plugin's devices, above all.
//
// Of two files the one that has served before runs, even if it is down now; then the one that is called what the
// process reports; then the first by name.

// identityOf returns the identity of a process of the copy sha. A process that reports no name is known by its copy.
func identityOf(kind, name, sha string) string {
	if name == "" {
		name = "sha256:" + sha
	}
	kind, _, _ = strings.Cut(kind, ".")
	return kind + "/" + name
}

// duplicate says that a plugin is refused because another one has its identity.
type duplicate struct {
	of  string
	msg string
}

func (d *duplicate) Error() string { return d.msg }

// recall reads from the record of an earlier host whether this plugin has served, and as what.
func (i *instance) recall() {
	rec, err := loadRecord(i.sup.dir, i.name)
	if err != nil {
		return // bring reports it
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.served = rec.Served != ""
	if id := rec.Identities[rec.Served]; id != "" {
		i.claims = []string{id}
	}
}

// claim makes sure that no other plugin has the identity, and takes it. While a plugin that would be preferred is
// still starting, claim waits for it, at most half of StartTimeout. The error is permanent and a duplicate.
func (i *instance) claim(ctx context.Context, identity string) error {
	ctx, cancel := context.WithTimeout(ctx, i.sup.cfg.StartTimeout/2)
	defer cancel()
	i.mu.Lock()
	if !slices.Contains(i.claims, identity) {
		i.claims = append(slices.Clip(i.claims), identity)
	}
	i.mu.Unlock()
	i.sup.changed.Notify()
	for {
		changed := i.sup.changed.Wait()
		rival, unsure := i.sup.rivals(i, identity)
		if rival != nil {
			return managed.NewPermanent(i.duplicateOf(rival, identity))
		}
		if !unsure {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil // it does not come up
		}
	}
}

// holds makes an identity the plugin's only one: that of its serving process.
func (i *instance) holds(identity string) {
	i.mu.Lock()
	i.claims, i.served = []string{identity}, true
	i.mu.Unlock()
}

// rivals returns the plugin that has an identity and is preferred to i and to all others. unsure is true if one is
// starting which may turn out to have it.
func (s *Supervisor) rivals(i *instance, identity string) (rival *instance, unsure bool) {
	s.imu.RLock()
	defer s.imu.RUnlock()
	best := i.rank(identity)
	for _, o := range s.instances {
		rank := o.rank(identity)
		switch {
		case o.name == i.name || !rank.before(best): // best is i, or preferred to it
		case rank.has:
			rival, best = o, rank
		case rank.unsure:
			unsure = true
		}
	}
	return rival, unsure
}

// rank says how much a plugin is preferred as the one of an identity.
type rank struct {
	served, named bool // it has served; its file has the name of the identity
	name          string

	has    bool // it has the identity
	unsure bool // it is starting, and may turn out to have it
}

func (i *instance) rank(identity string) rank {
	_, name, _ := strings.Cut(identity, "/")
	i.mu.Lock()
	defer i.mu.Unlock()
	return rank{
		served: i.served, named: i.name == name, name: i.name, has: slices.Contains(i.claims, identity),
		unsure: len(i.claims) == 0 && i.status.State == Starting,
	}
}

func (r rank) before(other rank) bool {
	switch {
	case r.served != other.served:
		return r.served
	case r.named != other.named:
		return r.named
	default:
		return r.name < other.name
	}
}

func (i *instance) duplicateOf(rival *instance, identity string) *duplicate {
	file, other := i.file(), rival.file()
	remove := fmt.Sprintf("remove %s", file)
	if len(i.sup.found.files(rival.name)) == 0 {
		other = "a kept copy"
		remove = fmt.Sprintf("run pannier plugin remove %s, or remove %s", rival.name, file)
	}
	return &duplicate{of: rival.name, msg: fmt.Sprintf("%s is refused: it is the plugin %s, which runs as %q from %s: %s",
		file, identity, rival.name, other, remove)}
}

// file returns the path of the plugin's file, or where it would be.
func (i *instance) file() string {
	if i.path != "" {
		return i.path
	}
	if files := i.sup.found.files(i.name); len(files) > 0 {
		return files[0].path
	}
	return filepath.Join(i.sup.cfg.PluginDir, i.name)
}

// isDuplicate returns the plugin that an error says this one is a duplicate of, or "".
func isDuplicate(err error) string {
	if d := (*duplicate)(nil); errors.As(err, &d) {
		return d.of
	}
	return ""
}
