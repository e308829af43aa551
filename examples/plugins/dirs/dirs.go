package main

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/storage"
)

// dirs is the plugin. All lasting state is in the file system, because another process of the plugin may take
// over between any two calls.
type dirs struct {
	mode atomic.Uint32 // of directories that Create makes
	// mounts is held by the call that changes mounts, since it looks at them first.
	mounts sync.Mutex
}

// root returns the directory with a driver's volumes: its endpoint in the agent's csi_driver block.
func root(d storage.Driver) string { return strings.TrimPrefix(d.Endpoint, "unix://") }

// folder returns the directory of a volume.
func folder(d storage.Driver, id string) (string, error) {
	if id == "" || id == "." || id == ".." || strings.ContainsRune(id, '/') {
		return "", status.Errorf(codes.InvalidArgument, "%q is not the name of a folder", id)
	}
	return filepath.Join(root(d), id), nil
}

// existing returns the directory of a volume, or an error if it does not exist.
func existing(d storage.Driver, id string) (string, error) {
	path, err := folder(d, id)
	if err != nil {
		return "", err
	}
	info, err := os.Lstat(path)
	switch {
	case os.IsNotExist(err):
		return "", status.Errorf(codes.NotFound, "there is no folder %s", path)
	case err != nil:
		return "", status.Errorf(codes.Unavailable, "look at the volume: %v", err)
	case !info.IsDir():
		return "", status.Errorf(codes.FailedPrecondition, "%s is not a folder", path)
	default:
		return path, nil
	}
}

// fingerprint returns the driver's present state and abilities. A driver without its directory is unhealthy.
func fingerprint(d storage.Driver) storage.Fingerprint {
	f := storage.Fingerprint{
		Provider: "dirs", Version: "1.0.0",
		Controller: &storage.ControllerCapabilities{CreateDelete: true, ListVolumes: true},
	}
	info, err := os.Stat(root(d))
	if err == nil && !info.IsDir() {
		err = &os.PathError{Op: "open", Path: root(d), Err: os.ErrInvalid}
	}
	host, hostErr := os.Hostname()
	switch {
	case err != nil:
		f.Message = err.Error()
	case hostErr != nil:
		f.Message = hostErr.Error()
	default:
		f.Healthy = true
	}
	f.Node = &storage.NodeCapabilities{NodeID: host, VolumeStats: true}
	return f
}

// Fingerprint reports each change until ctx ends.
func (*dirs) Fingerprint(ctx context.Context, d storage.Driver, opts storage.FingerprintOptions,
	report func(storage.Fingerprint) error,
) error {
	if opts.Interval <= 0 {
		opts.Interval = 30 * time.Second
	}
	tick := time.NewTicker(opts.Interval)
	defer tick.Stop()
	var last storage.Fingerprint
	for {
		if now := fingerprint(d); !reflect.DeepEqual(now, last) {
			if err := report(now); err != nil {
				return err
			}
			if last.Healthy && !now.Healthy {
				sdk.Emit(sdk.Event{Type: "root-lost", Subject: d.ID, Message: now.Message})
			}
			last = now
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Probe reports whether the driver's directory exists.
func (*dirs) Probe(_ context.Context, d storage.Driver, _ time.Duration) (bool, error) {
	return fingerprint(d).Healthy, nil
}

// ValidateVolume refuses requests that a bind mount cannot fulfil.
func (*dirs) ValidateVolume(_ context.Context, d storage.Driver, req storage.ValidateRequest) ([]string, error) {
	if _, err := existing(d, req.Volume.ExternalID); err != nil {
		return nil, err
	}
	for _, c := range req.Capabilities {
		if err := check(c); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func check(c storage.Capability) error {
	if c.AttachmentMode == storage.BlockDevice {
		return status.Error(codes.FailedPrecondition, "a folder cannot be attached as a block device: ask for file-system")
	}
	if strings.HasPrefix(string(c.AccessMode), "multi-node") {
		return status.Errorf(codes.FailedPrecondition, "access mode %s: a folder is on one node", c.AccessMode)
	}
	return nil
}

// Attach does nothing, because the directories are on the node. Fingerprint reports that it is not needed.
func (*dirs) Attach(context.Context, storage.Driver, storage.AttachRequest) (map[string]string, error) {
	return nil, nil
}

// Detach does nothing.
func (*dirs) Detach(context.Context, storage.Driver, storage.Volume, string) error { return nil }

// Stage does nothing, as reported by Fingerprint.
func (*dirs) Stage(context.Context, storage.Driver, storage.StageRequest) error { return nil }

// Unstage does nothing.
func (*dirs) Unstage(context.Context, storage.Driver, storage.Volume, string) error { return nil }

// Publish bind-mounts the volume's directory. It may be called again: an existing mount is kept.
func (d *dirs) Publish(_ context.Context, driver storage.Driver, req storage.PublishRequest) error {
	source, err := existing(driver, req.Volume.ExternalID)
	if err != nil {
		return err
	}
	if err := check(req.Volume.Capability); err != nil {
		return err
	}
	d.mounts.Lock()
	defer d.mounts.Unlock()
	return bind(source, req.TargetPath, req.ReadOnly)
}

// Unpublish removes the mount and its directory. It may be called again.
func (d *dirs) Unpublish(_ context.Context, _ storage.Driver, _ storage.Volume, target string) error {
	d.mounts.Lock()
	defer d.mounts.Unlock()
	return unbind(target)
}
