// Package mounts knows the paths at which volumes are mounted on this node, and reads the kernel's mount
// table to find out what is really mounted there.
//
// It calls no driver and keeps no record. It never follows a link in a driver's folder, removes nothing that
// holds data (but may move it aside), and unmounts only below such a folder, never lazily.
package mounts

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pannier/pannier/cluster/claim"
)

// Layout names the paths below <data_dir>/csi. A driver in a container sees its
// own folder elsewhere; the driver's registry translates.
type Layout struct {
	// Dir is <data_dir>/csi: absolute, clean and without symbolic links, or its mounts would be
	// listed under another path in the mount table (see Check).
	Dir string
}

// Check fails if Dir is not absolute or contains symbolic links.
func (l Layout) Check() error {
	resolved, err := filepath.EvalSymlinks(l.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("resolve the folder of volumes: %w", err)
	}
	if resolved != l.Dir || !filepath.IsAbs(resolved) {
		return fmt.Errorf("the folder of volumes, %s, is really %s: data_dir must be absolute, without links", l.Dir,
			resolved)
	}
	return nil
}

// Usage is one way of using a volume on a node, and the name of a directory. Mount options of single workloads are not
// part of it.
type Usage struct {
	ReadOnly       bool
	AttachmentMode claim.AttachmentMode
	AccessMode     claim.AccessMode
	Ephemeral      bool `json:",omitempty"` // the driver has made the volume for one workload
}

// Modes returns the modes of the claim.
func (u Usage) Modes() claim.Capability {
	return claim.Capability{AccessMode: u.AccessMode, AttachmentMode: u.AttachmentMode}
}

// ephemeralUsage begins the usages of ephemeral volumes.
const ephemeralUsage = "ephemeral-"

// String is such as rw-file-system-single-node-writer.
func (u Usage) String() string {
	mode := "rw"
	if u.ReadOnly {
		mode = "ro"
	}
	if u.Ephemeral {
		mode = ephemeralUsage + mode
	}
	return mode + "-" + string(u.AttachmentMode) + "-" + string(u.AccessMode)
}

// Place is where a volume is mounted on this node, in the host's paths.
type Place struct {
	Target  string
	Staging string // empty where the driver does not stage
	// Unexpanded explains why what is mounted has not the size that the volume has now; empty: it has.
	Unexpanded string `json:",omitempty"`
}

// Driver is the folder of one driver: everything that it may mount lies below it.
func (l Layout) Driver(id string) string { return filepath.Join(l.Dir, id) }

// Staging is where a driver stages a volume whose first user on this node has the usage. All others use it there.
func (l Layout) Staging(driver string, v claim.VolumeRef, u Usage) string {
	return filepath.Join(l.StagingOf(driver, v), u.String())
}

// Target is where a driver publishes a volume for one request of a workload. The request's name
// distinguishes requests of one workload for the same volume and usage.
func (l Layout) Target(driver string, w claim.WorkloadRef, v claim.VolumeRef, u Usage, request string) string {
	return filepath.Join(l.WorkloadVolume(driver, w, v), u.String(), request)
}

// WorkloadVolume is the folder below which a volume is published for a workload.
func (l Layout) WorkloadVolume(driver string, w claim.WorkloadRef, v claim.VolumeRef) string {
	return filepath.Join(l.Driver(driver), workloadDir, w.ID, v.Namespace, volumeDir(v.ID))
}

// StagingOf is the folder below which a volume is staged.
func (l Layout) StagingOf(driver string, v claim.VolumeRef) string {
	return filepath.Join(l.Driver(driver), stagingDir, v.Namespace, volumeDir(v.ID))
}

// volumeDir is the name of a volume's directories: its id, in which +xx, the character's number in hexadecimal, stands
// for a character that a shell, a unit, a mount option or the mount table may take for something else.
func volumeDir(id string) string {
	var b strings.Builder
	for _, c := range []byte(id) {
		if claim.InID(rune(c)) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "+%02x", c)
		}
	}
	return b.String()
}

// volumeOf reverses volumeDir. A name that it does not make is taken as it is.
func volumeOf(namespace, dir string) claim.VolumeRef {
	var id []byte
	for rest := dir; rest != ""; {
		plain, escaped, _ := strings.Cut(rest, "+")
		c, err := hex.DecodeString(escaped[:min(2, len(escaped))])
		if err != nil {
			break
		}
		id = append(append(id, plain...), c...)
		rest = escaped[2*len(c):]
	}
	if volumeDir(string(id)) != dir || claim.CheckVolumeID(string(id)) != nil {
		id = []byte(dir)
	}
	return claim.VolumeRef{Namespace: namespace, ID: string(id)}
}

const (
	stagingDir  = "staging"
	workloadDir = "per-workload"
)

// Volume returns the volume that is mounted at a path of this layout; ok is false for any other
// path.
func (l Layout) Volume(path string) (ref claim.VolumeRef, ok bool) {
	rel, err := filepath.Rel(l.Dir, path)
	if err != nil || !filepath.IsLocal(rel) {
		return claim.VolumeRef{}, false
	}
	parts := strings.Split(rel, string(filepath.Separator))
	switch {
	case len(parts) >= 5 && parts[1] == stagingDir: // driver, staging, namespace, volume, usage
		return volumeOf(parts[2], parts[3]), true
	case len(parts) >= 7 && parts[1] == workloadDir: // driver, per-workload, workload, namespace, volume, usage, request
		return volumeOf(parts[3], parts[4]), true
	}
	return claim.VolumeRef{}, false
}

// Published is Volume for paths where volumes are published.
func (l Layout) Published(path string) (ref claim.VolumeRef, ok bool) {
	rel, err := filepath.Rel(l.Dir, path)
	if parts := strings.SplitN(rel, string(filepath.Separator), 3); err != nil || len(parts) < 3 ||
		parts[1] != workloadDir {
		return claim.VolumeRef{}, false
	}
	return l.Volume(path)
}

// Ephemeral returns the driver that publishes an ephemeral volume at a path, and for which workload; ok is false for
// any other path.
func (l Layout) Ephemeral(path string) (driver string, w claim.WorkloadRef, ok bool) {
	w, ok = l.Workload(path)
	parts := strings.Split(strings.TrimPrefix(path, l.Dir+"/"), string(filepath.Separator))
	if !ok || !strings.HasPrefix(parts[5], ephemeralUsage) {
		return "", claim.WorkloadRef{}, false
	}
	return parts[0], w, true
}

// Workload returns the workload for which a volume is published at a path; ok is false for any other path.
func (l Layout) Workload(path string) (w claim.WorkloadRef, ok bool) {
	ref, published := l.Published(path)
	rel, err := filepath.Rel(l.Dir, path)
	parts := strings.Split(rel, string(filepath.Separator))
	if err != nil || !published || len(parts) != 7 {
		return w, false
	}
	return claim.WorkloadRef{Namespace: ref.Namespace, ID: parts[2]}, true
}

// OnDisk reports whether a mount of the table shows a directory or file of the driver's folder that is on the disk of
// Dir itself, rather than something that is mounted there.
func (l Layout) OnDisk(t Table, driver string, m Mount) bool {
	dir := l.Driver(driver)
	for _, i := range slices.Backward(t) {
		if !strings.HasPrefix(dir, i.Mountpoint) { // the kernel's paths are clean, and a host has thousands of mounts
			continue
		}
		rel, err := filepath.Rel(i.Mountpoint, dir)
		if err != nil || !filepath.IsLocal(rel) {
			continue
		}
		over := newMount(i)
		for _, dir := range []string{stagingDir, workloadDir} {
			own := filepath.Join(over.Root, rel, dir)
			if m.Device == over.Device && (m.Root == own || strings.HasPrefix(m.Root, own+"/")) {
				return true
			}
		}
		return false
	}
	return false
}

// MovedFrom returns the data directory that a path of a layout was in when it was made, if that is another one than
// this layout's; else empty. Dir is a folder of the data directory.
func (l Layout) MovedFrom(target string) (dataDir string) {
	if _, ours := l.Volume(target); ours {
		return ""
	}
	dir := target
	for range 7 { // see Volume
		dir = filepath.Dir(dir)
	}
	if _, published := (Layout{dir}).Published(target); !published || filepath.Base(dir) != filepath.Base(l.Dir) {
		return ""
	}
	return filepath.Dir(dir)
}

// split splits a path where drivers may mount into the driver's folder and the rest; any other path
// is ErrOutside.
func (l Layout) split(path string) (dir, rel string, err error) {
	if rel, err = filepath.Rel(l.Dir, path); err == nil && filepath.IsLocal(rel) {
		parts := strings.SplitN(rel, string(filepath.Separator), 3)
		if len(parts) == 3 && (parts[1] == stagingDir || parts[1] == workloadDir) {
			return l.Driver(parts[0]), filepath.Join(parts[1:]...), nil
		}
	}
	return "", "", fmt.Errorf("%s: %w", path, ErrOutside)
}
