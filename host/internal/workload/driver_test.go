package workload

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/sdk/storage"
)

// driver is a storage plugin and its CSI drivers, with the calls that a node makes. It keeps nothing in memory: what
// is mounted is its state. A file-system volume is the directory with its name below base; a block volume is a link to
// the device. The driver's ID says what it can do: see fingerprint.
type driver struct {
	storage.Client
	*hooks
	fence *guards
	base  string
	wrong func(format string, args ...any) // an invariant was broken
	// restages: expect staging of what is staged already, as after a restart.
	restages bool
	// lies: answer stage with success and mount nothing.
	lies bool
	// anyone: ephemeral volumes are for other workloads than w too.
	anyone bool
}

// settle is the SettleTime of the drivers, long enough to be seen.
const settle = 300 * time.Millisecond

// The drivers of these tests.
const (
	full    = "full"    // attaches and stages
	divided = "divided" // as full, and its controllers are on other nodes
	staged  = "staged"  // stages
	plain   = "plain"   // publishes only
)

func fingerprint(id string) storage.Fingerprint {
	fp := storage.Fingerprint{
		Healthy:    true,
		Controller: &storage.ControllerCapabilities{AttachDetach: attaching(id)},
		Node:       &storage.NodeCapabilities{NodeID: "node-of-" + id, StageUnstage: id != plain},
	}
	if id == divided {
		fp.Controller = nil
	}
	return fp
}

func attaching(id string) bool { return id == full || id == divided }

func volumeName(v storage.Volume) string {
	if isEphemeral(v) {
		return "ephemeral"
	}
	return strings.TrimPrefix(v.ExternalID, "external-")
}

func isEphemeral(v storage.Volume) bool { return strings.HasPrefix(v.ExternalID, "csi-") }

func (d *driver) check(ok bool, format string, args ...any) {
	if !ok {
		d.wrong(format, args...)
	}
}

// checkAsked checks that calls that make something have all that they need.
func (d *driver) checkAsked(ref storage.Driver, v storage.Volume, publishContext map[string]string) {
	d.check(v.Secrets["user"] == "admin", "%s: no secrets", v.Name)
	d.check(v.Context["of"] == v.ExternalID, "%s: the volume context is %v", v.Name, v.Context)
	d.check((publishContext["device"] == v.ExternalID) == attaching(ref.ID), "%s: the publish context is %v", v.Name,
		publishContext)
}

func (d *driver) Stage(ctx context.Context, ref storage.Driver, req storage.StageRequest) error {
	return d.call(ctx, "stage", volumeName(req.Volume), func() error {
		d.check(ref.ID != plain, "a driver that cannot stage was asked to")
		d.checkAsked(ref, req.Volume, req.PublishContext)
		d.check(d.fence.guards(req.StagingPath), "%s is staged and the fence does not know", req.Volume.Name)
		if req.Volume.Capability.AttachmentMode == storage.BlockDevice {
			return nil // nothing is to be mounted
		}
		if d.lies {
			return nil
		}
		if at(req.StagingPath) != nil {
			d.check(d.restages, "%s is staged twice at %s", req.Volume.Name, req.StagingPath)
			return nil
		}
		return d.bind(filepath.Join(d.base, req.Volume.ExternalID), req.StagingPath, false)
	})
}

func (d *driver) Unstage(ctx context.Context, ref storage.Driver, v storage.Volume, path string) error {
	return d.call(ctx, "unstage", volumeName(v), func() error {
		d.check(ref.ID != plain, "a driver that cannot stage was asked to unstage")
		if was := at(path); was != nil {
			there, err := mounts.Below(filepath.Dir(filepath.Dir(filepath.Dir(filepath.Dir(path)))))
			for _, m := range there {
				published := m.Root == was.Root && strings.Contains(m.Path, "/per-workload/")
				d.check(err == nil && !published, "%s is unstaged while it is published at %s", v.Name, m.Path)
			}
		}
		return unmount(path)
	})
}

func (d *driver) Publish(ctx context.Context, ref storage.Driver, req storage.PublishRequest) error {
	return d.call(ctx, "publish", volumeName(req.Volume), func() error {
		if isEphemeral(req.Volume) {
			d.checkEphemeral(req)
		} else {
			d.checkAsked(ref, req.Volume, req.PublishContext)
			d.check(d.fence.guards(req.TargetPath), "%s is published and the fence does not know", req.Volume.Name)
		}
		if _, err := os.Stat(filepath.Dir(req.TargetPath)); err != nil {
			return status.Errorf(codes.Internal, "the parent of the target: %v", err)
		}
		if at(req.TargetPath) != nil {
			return nil
		}
		source := filepath.Join(d.base, req.Volume.ExternalID)
		if req.Volume.Capability.AttachmentMode == storage.BlockDevice {
			device, err := filepath.EvalSymlinks(source)
			if err != nil {
				return status.Error(codes.NotFound, err.Error())
			}
			if err := os.WriteFile(req.TargetPath, nil, 0o600); err != nil {
				return err
			}
			return d.bind(device, req.TargetPath, false)
		}
		switch {
		case isEphemeral(req.Volume):
			if err := os.MkdirAll(source, 0o700); err != nil || d.lies {
				return err
			}
		case ref.ID != plain:
			d.check(d.lies || at(req.StagingPath) != nil, "%s is published before it is staged", req.Volume.Name)
			source = req.StagingPath
		default:
			d.check(req.StagingPath == "", "a driver that cannot stage was told a staging path")
		}
		if err := os.Mkdir(req.TargetPath, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return d.bind(source, req.TargetPath, req.ReadOnly)
	})
}

func (d *driver) Unpublish(ctx context.Context, _ storage.Driver, v storage.Volume, path string) error {
	return d.call(ctx, "unpublish", volumeName(v), func() error {
		if err := unmount(path); err != nil {
			return err
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return status.Error(codes.Internal, err.Error())
		}
		if isEphemeral(v) {
			return os.RemoveAll(filepath.Join(d.base, v.ExternalID))
		}
		return nil
	})
}

// checkEphemeral checks a call that makes an ephemeral volume.
func (d *driver) checkEphemeral(req storage.PublishRequest) {
	const info = "csi.storage.k8s.io/"
	v := req.Volume
	d.check(v.Secrets["key"] == "the content of /secret" && len(v.Secrets) == 1, "%s: the secrets are %v", v.Name, v.Secrets)
	d.check(v.Context[info+"ephemeral"] == "true" && (d.anyone || v.Context[info+"pod.name"] == "w") &&
		v.Context[info+"pod.namespace"] == claim.DefaultNamespace && v.Context[info+"serviceAccount.name"] == v.Context[info+"pod.name"] &&
		len(v.Context[info+"pod.uid"]) == 26 && v.Context["size"] == "1GiB" && len(v.Context) == 6,
		"%s: the volume context is %v", v.Name, v.Context)
	d.check(req.StagingPath == "" && req.PublishContext == nil, "%s: it was staged or attached: %+v", v.Name, req)
	d.check(v.Capability.AccessMode == storage.SingleNodeWriter && v.Capability.AttachmentMode == storage.FileSystem,
		"%s: its capability is %+v", v.Name, v.Capability)
}

func (d *driver) bind(source, target string, readOnly bool) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return status.Errorf(codes.Internal, "bind %s on %s: %v", source, target, err)
	}
	if readOnly {
		return unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
	return nil
}

func at(path string) *mounts.Mount {
	m, err := mounts.At(path)
	if err != nil {
		panic(err)
	}
	return m
}

func unmount(path string) error {
	for at(path) != nil {
		if err := unix.Unmount(path, 0); err != nil {
			return status.Errorf(codes.Internal, "unmount %s: %v", path, err)
		}
	}
	return nil
}

// controller is the drivers' controller, wherever that runs.
type controller struct{ *driver }

func (c controller) Attach(ctx context.Context, v claim.Volume, modes claim.Capability,
	node string,
) (publishContext map[string]string, err error) {
	err = c.call(ctx, "attach", v.ID, func() error {
		c.check(attaching(v.PluginID), "%s is attached, and its driver needs no attachment", v.ID)
		c.check(node == here && modes.AccessMode != "" && modes.AttachmentMode != "", "attach %s: %+v on %q", v.ID, modes,
			node)
		publishContext = map[string]string{"device": v.ExternalID}
		return nil
	})
	return publishContext, err
}

// registry is the drivers of this node.
type registry struct {
	mu      sync.Mutex
	known   []drivers.Driver
	changed chan struct{}
}

func newRegistry() *registry {
	r := &registry{changed: make(chan struct{})}
	for _, id := range []string{full, divided, staged, plain} {
		r.known = append(r.known, drivers.Driver{
			Spec: drivers.Spec{ID: id, SettleTime: settle}, Fingerprint: fingerprint(id), Healthy: true,
		})
	}
	r.known[0].EphemeralVolumes = &drivers.EphemeralVolumes{Secrets: map[string]string{"key": "file:///secret"}}
	return r
}

func (r *registry) Get(id string) (drivers.Driver, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := slices.IndexFunc(r.known, func(d drivers.Driver) bool { return d.ID == id })
	if n < 0 {
		return drivers.Driver{}, drivers.ErrNotFound
	}
	return r.known[n], nil
}

func (r *registry) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// set changes a driver and announces it.
func (r *registry) set(id string, change func(d *drivers.Driver)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n := range r.known {
		if r.known[n].ID == id {
			change(&r.known[n])
		}
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

// impatient gives the drivers little time for a call.
func (h *host) impatient() {
	for _, id := range []string{full, divided, staged, plain} {
		h.drivers.set(id, func(d *drivers.Driver) {
			d.Timeouts = drivers.Timeouts{Stage: time.Second, Publish: time.Second}
		})
	}
}

func (r *registry) healthy(id string, is bool) {
	r.set(id, func(d *drivers.Driver) {
		d.Healthy, d.Message = is, map[bool]string{false: "the test took it away"}[is]
	})
}
