package catalog

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/internal/errcode"
)

// Use is a part of the configuration that calls a plugin.
type Use struct {
	// Of names it: csi_driver "x".
	Of string
	// ID is the driver's, or the name of the consul or identity block.
	ID   string
	Kind string
	// Plugin is the plugin that it names; empty: the preferred one of the kind, or the only one.
	Plugin string
	// Brought is true if it is a driver which that plugin brings itself.
	Brought bool
	// Optional is set where workloads may never need it.
	Optional bool
}

// preferred are the plugins that are used where none is named, by kind.
var preferred = map[string]string{
	storageKind.protocol: storageKind.preferred, Identity.protocol: Identity.preferred,
	Registration.protocol: Registration.preferred, Bootstrap.protocol: Bootstrap.preferred,
}

// ErrNotServed means that no plugin can serve a use.
var ErrNotServed = errcode.FailedPrecondition.New("no plugin serves it")

// By returns the plugin that serves the use, of those that all lists; empty: none does, or it is not known yet.
func (u Use) By(all []supervisor.Status) string {
	if u.Plugin != "" {
		return u.Plugin
	}
	if found, _ := candidates(all, u.Kind, preferred[u.Kind]); len(found) == 1 {
		return found[0]
	}
	return ""
}

// Check returns ErrNotServed where it is certain that no plugin will serve the use before an operator changes
// something. A plugin that does not run now is no error.
func (u Use) Check(all []supervisor.Status) error {
	if u.Plugin == "" {
		found, unknown := candidates(all, u.Kind, preferred[u.Kind])
		switch {
		case len(found) == 1 || len(found) == 0 && unknown:
			return nil
		case len(found) == 0:
			return fmt.Errorf("%s needs a plugin of kind %s: %w: put one into plugin_dir (see: pannier plugin list)", u.Of, u.Kind,
				ErrNotServed)
		}
		return fmt.Errorf("%s needs a plugin of kind %s: %w: there are %s: write in the block which one it uses", u.Of, u.Kind,
			ErrNotServed, strings.Join(found, ", "))
	}
	n := slices.IndexFunc(all, func(s supervisor.Status) bool { return s.Name == u.Plugin })
	switch {
	case n < 0 || all[n].Missing:
		return fmt.Errorf("%s names plugin %q: %w: put its file into plugin_dir (see: pannier plugin list)", u.Of, u.Plugin,
			ErrNotServed)
	case all[n].DuplicateOf != "":
		return fmt.Errorf("%s names plugin %q: %w: that is another file of plugin %q: name that one", u.Of, u.Plugin,
			ErrNotServed, all[n].DuplicateOf)
	case all[n].Kind != "" && all[n].Kind != u.Kind:
		return fmt.Errorf("%s names plugin %q: %w: it is of kind %s, and %s is needed", u.Of, u.Plugin, ErrNotServed,
			all[n].Kind, u.Kind)
	}
	return nil
}

// Unused explains why a plugin serves none of the uses; empty: it serves one, or it is of a kind that serves by itself,
// or of no kind yet.
func Unused(p supervisor.Status, all []supervisor.Status, uses []Use) string {
	if _, chosen := preferred[p.Kind]; !chosen || p.DuplicateOf != "" {
		return ""
	}
	var others []string
	for _, u := range uses {
		switch by := u.By(all); {
		case u.Kind != p.Kind:
		case by == p.Name:
			return ""
		case by != "":
			others = append(others, fmt.Sprintf("%s uses %s", u.Of, by))
		default:
			others = append(others, u.Of+" names none")
		}
	}
	if len(others) == 0 {
		return "the configuration has nothing that uses a plugin of kind " + p.Kind
	}
	return fmt.Sprintf("%s: name %q in a block, or take the file out of plugin_dir", strings.Join(others, ", "), p.Name)
}
