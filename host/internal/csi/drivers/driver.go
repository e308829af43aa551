package drivers

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/pannier/pannier/sdk/storage"
)

// What the registry refuses, for errors.Is.
var (
	// ErrNotFound: there is no such driver on this node.
	ErrNotFound = errors.New("driver not found")
	// ErrDeclared: the driver is the configuration's, not to be changed at run time.
	ErrDeclared = errors.New("driver is declared in the configuration")
	// ErrInUse: volumes are mounted through the driver.
	ErrInUse = errors.New("driver is in use")
	// ErrInvalid: the spec has mistakes.
	ErrInvalid = errors.New("invalid driver")
	// ErrClosed: the registry was closed.
	ErrClosed = errors.New("the registry of drivers is closed")
)

// Driver is a driver as the registry knew it at one moment. It is never changed;
// what it points to must not be changed either.
type Driver struct {
	Spec
	// Fingerprint is what the driver last said of itself, limited to the services of
	// its type. Capabilities, provider and version stay as last known while the
	// driver is unhealthy. Its Healthy and Message are the storage plugin's opinion.
	Fingerprint storage.Fingerprint
	// Healthy and Message are the registry's conclusion: Message says why the driver
	// is unhealthy, or what else an operator should know.
	Healthy bool
	Message string
	// PID of the process where the host runs it, 0 while there is none.
	PID int
	// Restarts since this host started.
	Restarts int
	// CrashLoop is set while the process keeps ending soon after its start.
	CrashLoop bool
	// Retired is set for one that is gone from the configuration and is kept only
	// because volumes are mounted through it.
	Retired bool
	// ChangedAt is when Healthy last changed, or else when the driver appeared.
	ChangedAt time.Time

	dir     string // <data_dir>/csi/<id>
	checked bool   // whether it is healthy or not has been said once
}

// Ref is how a storage plugin is told which driver a call is for.
func (d Driver) Ref() storage.Driver { return storage.Driver{ID: d.ID, Endpoint: d.Endpoint} }

// Dir is the driver's folder, <data_dir>/csi/<id>.
func (d Driver) Dir() string { return d.dir }

// notFound is ErrNotFound with what an operator can do.
func notFound(id string, known []string) error {
	here := "none is known"
	if len(known) > 0 {
		here = "known are " + strings.Join(known, ", ")
	}
	return fmt.Errorf("%w: %q is not on this node (%s): declare it with a csi_driver block, or run \"pannier driver register %s -endpoint unix:///path\"",
		ErrNotFound, id, here, id)
}

// conclude takes in a new report of the storage plugin: it limits it to the
// driver's type, keeps what was known where an unhealthy one is silent, and says
// whether anything but health is different now.
func (d *Driver) conclude(fp storage.Fingerprint) (different bool) {
	before := d.Fingerprint
	switch d.Type {
	case TypeNode:
		fp.Controller = nil
	case TypeController:
		fp.Node = nil
	}
	d.Healthy, d.Message = fp.Healthy, fp.Message
	if fp.Healthy {
		if missing := d.missing(fp); missing != "" {
			d.Healthy, d.Message = false, missing
		}
	} else {
		if fp.Provider == "" {
			fp.Provider, fp.Version = before.Provider, before.Version
		}
		if fp.Controller == nil {
			fp.Controller = before.Controller
		}
		if fp.Node == nil {
			fp.Node = before.Node
		}
	}
	d.Fingerprint = fp
	before.Healthy, before.Message = fp.Healthy, fp.Message
	return !reflect.DeepEqual(before, fp)
}

// missing says which service the driver's type promises and the driver has not.
func (d *Driver) missing(fp storage.Fingerprint) string {
	switch {
	case d.Type != TypeController && fp.Node == nil:
		return fmt.Sprintf("the type is %s, but the driver has no node service: set the type to controller", d.Type)
	case d.Type == TypeController && fp.Controller == nil:
		return "the type is controller, but the driver has no controller service: set the type to node"
	}
	return ""
}

// provider is the driver's own name and version, for messages.
func (d *Driver) provider() string {
	name := d.Fingerprint.Provider
	if name == "" {
		name = "a driver without a name"
	}
	return strings.TrimSpace(name + " " + d.Fingerprint.Version)
}

// equal compares by value, capabilities included.
func (d *Driver) equal(other Driver) bool { return reflect.DeepEqual(*d, other) }

// Translate gives the path under which the driver sees hostPath. For a driver
// that is not in a container that is hostPath itself. One in a container sees
//
//	<data_dir>/csi/<id>/staging/...       in StagePublishBaseDir
//	<data_dir>/csi/<id>/per-workload/...  in StagePublishBaseDir
//	<data_dir>/csi/<id>/...               in MountDir
//
// A path outside the driver's folder is the same inside: only what is mounted
// into the container under its own name can be meant.
func (d Driver) Translate(hostPath string) string {
	if d.MountDir == "" {
		return hostPath
	}
	rel, inside := below(d.dir, filepath.Clean(hostPath))
	if !inside {
		return hostPath
	}
	if first, _, _ := strings.Cut(rel, "/"); first == "staging" || first == "per-workload" {
		return filepath.Join(d.StagePublishBaseDir, rel)
	}
	return filepath.Join(d.MountDir, rel)
}

// below cuts dir off a clean path; whole elements only.
func below(dir, path string) (rel string, ok bool) {
	if path == dir {
		return "", true
	}
	return strings.CutPrefix(path, dir+"/")
}
