package device

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode"
)

// Bounds of what a plugin reports.
const (
	MaxGroups     = 32  // of a plugin
	MaxDevices    = 256 // of a plugin
	MaxAttributes = 64  // of a group
	MaxText       = 256 // bytes of an id, a name or an attribute
)

// ValidateGroups checks what Fingerprint reports and returns every fault: a group has a vendor, a type and a name,
// and only the name may contain a slash; groups and ids are unique in the plugin; the bounds of this package hold.
func ValidateGroups(groups []Group) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	seen, ids := map[[3]string]bool{}, map[string]bool{}
	if len(groups) > MaxGroups {
		return fmt.Errorf("%d groups, %d are allowed", len(groups), MaxGroups)
	}
	for _, g := range groups {
		name := fmt.Sprintf("group %q", g.Vendor+"/"+g.Type+"/"+g.Name)
		for _, part := range []struct{ what, text string }{{"vendor", g.Vendor}, {"type", g.Type}, {"name", g.Name}} {
			if err := checkText(part.text); err != nil {
				bad("%s: %s %w", name, part.what, err)
			} else if part.what != "name" && strings.Contains(part.text, "/") {
				bad("%s: %s must not have a slash", name, part.what)
			}
		}
		if key := [3]string{g.Vendor, g.Type, g.Name}; seen[key] {
			bad("%s is there twice", name)
		} else {
			seen[key] = true
		}
		if len(g.Attributes) > MaxAttributes {
			bad("%s: %d attributes, %d are allowed", name, len(g.Attributes), MaxAttributes)
		}
		for _, key := range slices.Sorted(maps.Keys(g.Attributes)) {
			if err := checkText(key); err != nil {
				bad("%s: attribute %q %w", name, key, err)
			} else if len(g.Attributes[key]) > MaxText {
				bad("%s: attribute %q has more than %d bytes", name, key, MaxText)
			}
		}
		for _, d := range g.Devices {
			if err := checkText(d.ID); err != nil {
				bad("%s: id %q %w", name, d.ID, err)
			}
			if ids[d.ID] {
				bad("%s: device %q is there twice", name, d.ID)
			}
			ids[d.ID] = true
		}
	}
	if len(ids) > MaxDevices {
		bad("%d devices, %d are allowed", len(ids), MaxDevices)
	}
	return errors.Join(errs...)
}

// Validate checks what Reserve returns and returns every fault: paths are absolute, clean and not /, each path in
// the workload is used once, permissions are a subset of "rwm", and variables have valid names.
func (r Reservation) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	places := map[string]bool{}
	check := func(what, hostPath, taskPath string) {
		for _, p := range []string{hostPath, taskPath} {
			if !path.IsAbs(p) || path.Clean(p) != p || p == "/" || strings.ContainsFunc(p, unicode.IsControl) {
				bad("%s: %q must be an absolute, clean path below /", what, p)
			}
		}
		if places[taskPath] {
			bad("%s: there are two for %s", what, taskPath)
		}
		places[taskPath] = true
	}
	for _, m := range r.Mounts {
		check("mount", m.HostPath, m.TaskPath)
	}
	for _, d := range r.Devices {
		check("device", d.HostPath, d.TaskPath)
		if d.Permissions == "" || strings.Trim(d.Permissions, "rwm") != "" {
			bad("device %s: permissions %q must be some of \"rwm\"", d.HostPath, d.Permissions)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(r.Env)) {
		if key == "" || strings.ContainsFunc(key,
			func(r rune) bool { return r == '=' || unicode.IsControl(r) || unicode.IsSpace(r) }) {
			bad("variable %q: no such name can be set", key)
		}
		if strings.ContainsFunc(r.Env[key], unicode.IsControl) { // it is written into lines for systemd and Docker
			bad("variable %q must not have control characters", key)
		}
	}
	return errors.Join(errs...)
}

func checkText(text string) error {
	switch {
	case text == "":
		return errors.New("is missing")
	case len(text) > MaxText:
		return fmt.Errorf("has more than %d bytes", MaxText)
	case strings.ContainsFunc(text, unicode.IsControl):
		return errors.New("must not have control characters")
	default:
		return nil
	}
}
