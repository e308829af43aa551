package drivers

import (
	"context"
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"time"

	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/internal/errcode"
	"github.com/pannier/pannier/sdk/storage"
)

// The registry's errors, for errors.Is.
var (
	// ErrNotFound: the driver is not on this node.
	ErrNotFound = errcode.NotFound.New("is not on this node")
	// ErrDeclared: the driver is declared in the configuration and cannot be changed at run time.
	ErrDeclared = errcode.FailedPrecondition.New("driver is declared in the configuration")
	// ErrBrought: the driver's storage plugin brings it.
	ErrBrought = errcode.FailedPrecondition.New("driver is brought by its plugin")
	// ErrInUse: volumes are mounted through the driver.
	ErrInUse = errcode.FailedPrecondition.New("driver is in use")
	// ErrNotRun: the host does not run the driver's process.
	ErrNotRun = errcode.FailedPrecondition.New("the agent does not run this driver")
	// ErrInvalid: the spec has mistakes.
	ErrInvalid = errcode.InvalidArgument.New("invalid driver")
	// ErrClosed: the registry was closed.
	ErrClosed = errcode.Unavailable.New("the registry of drivers is closed")
)

// Driver is a snapshot of a driver. Neither it nor what it points to may be changed.
type Driver struct {
	Spec
	// Fingerprint is the driver's last report, limited to the services of its type. Capabilities,
	// provider and version keep their last known values while the driver is unhealthy. Its Healthy
	// and Message are what the storage plugin reported.
	Fingerprint storage.Fingerprint
	// Healthy and Message are the registry's conclusion: Message explains why the driver is unhealthy, or what else an
	// operator should know.
	Healthy bool
	Message string
	// PID of the process if the host runs it, otherwise 0.
	PID int
	// Started is the start time of the process that had PID last (procfs.Stat).
	Started uint64
	// Restarts since this host started.
	Restarts int
	// CrashLoop is set while the process keeps ending soon after its start.
	CrashLoop bool
	// Retired is set for a driver that is gone from the configuration, or that its plugin no longer brings, and is kept
	// only because volumes are mounted through it.
	Retired bool
	// Waiting is set while a changed configuration waits until the driver is not in use; Message has the command that
	// applies it.
	Waiting bool
	// Controller is the driver's controller, if that is another process than its node service; nil: it is not, and the
	// rest is of both. Else the rest is of the node service, except Fingerprint.Controller.
	Controller *Driver
	// Left are processes that earlier ones of the driver have left, since they may serve mounts.
	Left []int
	// ChangedAt is when Healthy last changed, or else when the driver appeared.
	ChangedAt time.Time
	// Program is the checksum of the copy that the process runs from; empty: it has none.
	Program string
	// ProgramProblem explains why another program than the one in its file runs, or goes on to run; empty: it does not.
	ProgramProblem string
	// Swaps of its program, the newest last, at most 20.
	Swaps []Swap

	dir     string // <data_dir>/csi/<id>
	checked bool   // its health has been reported once
}

// Ref names the driver in calls to a storage plugin.
func (d Driver) Ref() storage.Driver { return storage.Driver{ID: d.ID, Endpoint: d.Endpoint} }

// Dir is the driver's folder, <data_dir>/csi/<id>.
func (d Driver) Dir() string { return d.dir }

// notFound is ErrNotFound with the known drivers and what an operator can do.
func notFound(id string, known []string) error {
	here := "none is known"
	if len(known) > 0 {
		here = "known are " + strings.Join(known, ", ")
	}
	return fmt.Errorf(
		"driver %q %w (%s): declare it with a csi_driver block, or run \"pannier driver register %s -endpoint unix:///path\"",
		id, ErrNotFound, here, id)
}

// conclude applies a new report of the storage plugin: it limits the report to the driver's type,
// keeps known values that an unhealthy driver did not report, and returns whether anything but the
// health changed.
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

// missing names the service that the driver's type requires and the driver does not have.
func (d *Driver) missing(fp storage.Fingerprint) string {
	switch {
	case d.Type != TypeController && fp.Node == nil:
		return fmt.Sprintf("the type is %s, but the driver has no node service: set the type to controller", d.Type)
	case d.Apart && fp.Controller == nil:
		return "it has no controller service: check how it is started"
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

// equal compares by value, including capabilities.
func (d *Driver) equal(other Driver) bool { return reflect.DeepEqual(*d, other) }

// Translate returns the path under which the driver sees hostPath. A driver that is not in a
// container sees hostPath itself. One in a container sees
//
//	<data_dir>/csi/<id>/staging/...       in StagePublishBaseDir
//	<data_dir>/csi/<id>/per-workload/...  in StagePublishBaseDir
//	<data_dir>/csi/<id>/...               in MountDir
//
// Paths outside the driver's folder are not translated: they must be mounted into the container
// under their own name.
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

// below returns the part of a clean path below dir, by whole elements.
func below(dir, path string) (rel string, ok bool) {
	if path == dir {
		return "", true
	}
	return strings.CutPrefix(path, dir+"/")
}

// ErrUnhealthy means that the driver cannot be called now. The error's text explains why.
var ErrUnhealthy = errcode.Unavailable.New("the driver is not healthy")

// Caller makes calls to drivers: it waits until the driver is healthy, and turns a plugin's error
// into the driver's own words.
type Caller struct {
	Drivers interface {
		Get(id string) (Driver, error)
		Changed() <-chan struct{}
	}
	// Storage runs fn with a client of a storage plugin, within the deadline of one call, and
	// again if the plugin process ended meanwhile (catalog.Catalog.DoStorage).
	Storage func(ctx context.Context, plugin string, fn func(ctx context.Context, c storage.Client) error) error
}

// Call makes one call to the node service of a driver that is healthy, or becomes healthy within wait. The error is
// ErrUnhealthy, or has the driver's own words and gRPC code.
func (c Caller) Call(ctx context.Context, id string, wait time.Duration,
	fn func(ctx context.Context, c storage.Client, d Driver) error,
) error {
	return c.call(ctx, id, wait, func(d Driver) Driver { return d }, fn)
}

// CallController is Call for the controller service.
func (c Caller) CallController(ctx context.Context, id string, wait time.Duration,
	fn func(ctx context.Context, c storage.Client, d Driver) error,
) error {
	return c.call(ctx, id, wait, Driver.ForController, fn)
}

func (c Caller) call(ctx context.Context, id string, wait time.Duration, part func(Driver) Driver,
	fn func(ctx context.Context, c storage.Client, d Driver) error,
) error {
	d, err := c.await(ctx, id, wait, part)
	if err != nil {
		return err
	}
	return plain(id, c.Storage(ctx, d.Plugin, func(ctx context.Context, s storage.Client) error {
		return fn(ctx, flagsChecked{s, d.Spec}, d)
	}))
}

// Await waits until the node service of a driver is healthy; ErrUnhealthy if it is not within wait. An unknown driver
// is an error at once.
func (c Caller) Await(ctx context.Context, id string, wait time.Duration) (Driver, error) {
	return c.await(ctx, id, wait, func(d Driver) Driver { return d })
}

func (c Caller) await(ctx context.Context, id string, wait time.Duration, part func(Driver) Driver) (Driver, error) {
	late := time.NewTimer(wait)
	defer late.Stop()
	for {
		changed := c.Drivers.Changed()
		d, err := c.Drivers.Get(id)
		d = part(d)
		if err != nil || d.Healthy {
			return d, err
		}
		unhealthy := fmt.Errorf("%w: %s (see: pannier driver status %s)", ErrUnhealthy, d.Message, id)
		if wait <= 0 {
			return d, unhealthy
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return d, context.Cause(ctx)
		case <-late.C:
			return d, fmt.Errorf("after %s: %w", wait, unhealthy)
		}
	}
}

// driverError is a gRPC status error whose text is the driver's own. status.FromError finds its code
// through any wrapping.
type driverError struct {
	err  error
	text string
}

func (e driverError) Error() string { return e.text }

func (e driverError) Unwrap() error { return e.err }

// plain removes gRPC's prefix ("rpc error: code = ...") from the text of an error that the plugin
// returned, the plugin's name, and what csi-bridge says before it of the call and the driver: callers say that
// themselves.
func plain(id string, err error) error {
	// A wrapped one has text of its own that must stay.
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); !ok {
		return err
	}
	text := pluginPrefix.ReplaceAllString(status.Convert(err).Message(), "")
	if what, rest, ok := strings.Cut(text, fmt.Sprintf(" on driver %q: ", id)); ok && !strings.Contains(what, ": ") {
		text = method.ReplaceAllString(rest, "the driver answered $1: ")
	}
	return driverError{err, text}
}

var (
	// pluginPrefix is what the catalog says of a plugin whose answer is an error.
	pluginPrefix = regexp.MustCompile(`^storage\([^()]*\): `)
	// method is CSI's name of the call that failed, which csi-bridge has in its log too.
	method = regexp.MustCompile(`^[A-Z]\w+ answered (\w+): `)
)
