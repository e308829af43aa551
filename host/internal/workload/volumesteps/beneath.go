package volumesteps

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/system/events"
)

// paths are where drivers mount volumes on this node.
type paths struct {
	layout mounts.Layout
	log    hclog.Logger
	events *events.Bus
}

// inTheWay is the error of a start that would hide files.
func inTheWay(verb string, v *Volume, err error) error {
	return fmt.Errorf("%s volume %q: a mount would hide what is there, which is not the volume's: move it away, and "+
		"start again: %w", verb, v.VolumeRef, err)
}

// unmount asks a driver to unmount a volume and remove the path, and does what it left undone, but for the directories,
// which the caller removes.
//
// Files beneath the mount point, such as those of a container that was given the path before the volume was mounted,
// make most drivers fail for ever: they cannot remove the directory. With ours, which says that all that is at the
// path without a mount is no driver's, the files are moved aside and the driver is called again.
func (p *paths) unmount(ref claim.VolumeRef, path string, ours bool, call func() error) error {
	err := call()
	if err != nil && ours {
		if there, readErr := p.layout.Mounted(path); readErr != nil || len(there) > 0 {
			return p.inUse(path, fmt.Errorf("%w (mounted: %v)", err, there))
		}
		moved, asideErr := p.setAside(ref, path)
		if asideErr != nil || !moved {
			return errors.Join(err, asideErr)
		}
		err = call()
	}
	if err != nil {
		return err
	}
	if there, err := p.layout.Mounted(path); err != nil || len(there) > 0 {
		err = errors.Join(err, p.removeMount(ref, path))
		p.report(ref, path, fmt.Sprintf("the driver answered that it has unmounted %s, and it was mounted still: %v", path, there))
		return err
	}
	return p.clearPath(ref, path)
}

// report tells of a mount that the host has to unmount itself.
func (p *paths) report(ref claim.VolumeRef, path, message string) {
	p.log.Warn("a mount is unmounted by the host", "volume", ref, "path", path, "why", message)
	p.events.Publish(events.Event{
		Topic: events.TopicVolume, Type: "unmounted", Subject: ref.String(), Message: message,
		Details: map[string]string{"path": path},
	})
}

// removeMount unmounts whatever is still mounted at a path after its driver has unmounted it, and removes the path: a
// driver that lost its state may have left a mount. Files beneath the mount are moved aside.
func (p *paths) removeMount(ref claim.VolumeRef, path string) error {
	if err := p.layout.Unmount(path); err != nil {
		return p.inUse(path, err)
	}
	if err := p.clearPath(ref, path); err != nil {
		return err
	}
	return p.removeEmpty(path)
}

// removeEmpty removes a path where nothing is mounted any more, and its parents, unless files stay there.
func (p *paths) removeEmpty(path string) error {
	if err := p.layout.Remove(path); !errors.Is(err, mounts.ErrHoldsData) {
		return err
	}
	return nil
}

// clearPath moves files aside that are at a path where nothing is mounted any more.
func (p *paths) clearPath(ref claim.VolumeRef, path string) error {
	_, err := p.setAside(ref, path)
	if stays := (*os.LinkError)(nil); errors.As(err, &stays) {
		// The volume is unmounted, so its claim may be released. The next start reports what is in its way.
		p.log.Error("files beneath a volume's mount point could not be moved aside", "volume", ref, "error", err)
		return nil
	}
	return err
}

// setAside moves the files at a path where nothing is mounted any more, and says where they are.
func (p *paths) setAside(ref claim.VolumeRef, path string) (moved bool, err error) {
	to, err := p.layout.SetAside(path, time.Now())
	if err != nil || to == "" {
		return false, err
	}
	p.log.Warn("files beneath a volume's mount point were moved aside", "volume", ref, "from", path, "to", to)
	p.events.Publish(events.Event{
		Topic: events.TopicVolume, Type: "set-aside", Subject: ref.String(),
		Message: fmt.Sprintf("files that are not the volume's were beneath its mount point %s: they are in %s now", path, to),
		Details: map[string]string{"from": path, "to": to},
	})
	return true, nil
}
