// Package mountunits finds the mount units that have volumes, in unit files and fstab, and gives them their order.
package mountunits

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/coreos/go-systemd/v22/unit"
)

// The program that systemd calls at a boot and daemon-reload, and where its output is (systemd.generator(7)).
const (
	Generator    = "/usr/lib/systemd/system-generators/pannier-generator"
	GeneratorDir = "/run/systemd/generator"
)

// dropIn gives a unit the order of a network's file system, after the agent. systemd gives it only to types that it
// knows and to _netdev; others it mounts before local-fs.target, which the agent is started after.
const dropIn = `# By pannier-generator, for volumes of Pannier.
[Unit]
DefaultDependencies=no
Conflicts=umount.target
Before=umount.target remote-fs.target
After=remote-fs-pre.target network.target network-online.target pannier.socket pannier.service
Wants=network-online.target
Requires=pannier.socket
`

// Unit is a mount unit that has a volume.
type Unit struct {
	Name string
	// File has it, at the line Line if that is fstab.
	File string
	Line int
	// Options of the line of fstab.
	Options []string
}

// DropIn returns the drop-in of the unit below a generator's directory.
func (u *Unit) DropIn(dir string) string { return filepath.Join(dir, u.Name+".d", "pannier.conf") }

// Early reports whether the line of fstab makes systemd mount it before local-fs.target, which no drop-in changes.
func (u *Unit) Early() bool { return u.Line > 0 && !slices.Contains(u.Options, "_netdev") }

// Find returns the mount units of a machine whose root is given.
func Find(root string) (all []Unit, err error) {
	for _, dir := range []string{"etc", "run", "usr/local/lib", "usr/lib"} {
		files, err := filepath.Glob(filepath.Join(root, dir, "systemd/system/*.mount"))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if hasVolume(file) {
				all = append(all, Unit{Name: filepath.Base(file), File: file})
			}
		}
	}
	path := filepath.Join(root, "etc/fstab")
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	} else if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || strings.HasPrefix(fields[0], "#") || fields[2] != "pannier" {
			continue
		}
		where, err := strconv.Unquote(`"` + strings.ReplaceAll(fields[1], `"`, `\"`) + `"`) // \040 is a space
		if err != nil {
			where = fields[1]
		}
		all = append(all, Unit{
			Name: unit.UnitNamePathEscape(where) + ".mount", File: path, Line: n,
			Options: strings.Split(fields[3], ","),
		})
	}
	return all, lines.Err()
}

// hasVolume reports whether a unit file, which may be wrong, mounts a volume.
func hasVolume(file string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	options, err := unit.DeserializeOptions(f)
	return err == nil && slices.ContainsFunc(options, func(o *unit.UnitOption) bool {
		return o.Section == "Mount" && o.Name == "Type" && o.Value == "pannier"
	})
}

// Generate writes the drop-ins of a machine's units below a directory.
func Generate(root, dir string) error {
	all, err := Find(root)
	if err != nil {
		return fmt.Errorf("find the mount units with volumes: %w", err)
	}
	for _, u := range all {
		if u.Early() {
			continue
		}
		err := os.MkdirAll(filepath.Dir(u.DropIn(dir)), 0o755) //nolint:gosec // as systemd's own
		if err == nil {
			err = os.WriteFile(u.DropIn(dir), []byte(dropIn), 0o644) //nolint:gosec // as systemd's own
		}
		if err != nil {
			return err
		}
	}
	return nil
}
