package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/storage"
)

// dirs is the plugin. All lasting state is in the file system, because another process of the plugin may take
// over between any two calls.
type dirs struct {
	sdk.Config[config]
	// mounts is held by the call that changes mounts, since it looks at them first.
	mounts sync.Mutex
}

// Drivers implements storage.DriverBringer: with a root in its configuration the plugin needs no csi_driver block.
func (d *dirs) Drivers(context.Context) ([]storage.Driver, error) {
	root := d.Get().Root
	if root == "" {
		return nil, nil
	}
	return []storage.Driver{{ID: name, Endpoint: root}}, nil
}

// root returns the directory with a driver's volumes: the root of the configuration, or the endpoint of a csi_driver
// block.
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
	healthy := false
	return storage.Poll(ctx, opts, report, func(context.Context) storage.Fingerprint {
		now := fingerprint(d)
		if healthy && !now.Healthy {
			sdk.Emit(sdk.Event{Type: "root-lost", Subject: d.ID, Message: now.Message})
		}
		healthy = now.Healthy
		return now
	})
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
