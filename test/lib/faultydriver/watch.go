package faultydriver

import (
	"fmt"
	"slices"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// watch checks every call against the rules that the CSI spec gives to callers ("Volume Lifecycle"): a volume is
// staged at one path at a time, published only from where it is staged, unstaged only when it is not published from
// there, detached only when it is staged nowhere, and never published twice in a single-user access mode.
//
// An operation counts as done from its beginning until its reversal has succeeded. A call that only repeats what
// is done already is allowed, and counted.
type watch struct {
	mu         sync.Mutex
	stagings   map[string]string // path: volume
	targets    map[string]target // path
	violations []string
	repeats    []string
}

type target struct {
	volume, staging string
	mode            csi.VolumeCapability_AccessMode_Mode
}

// Violations returns the calls so far that a driver must never see.
func (d *Driver) Violations() []string {
	d.watch.mu.Lock()
	defer d.watch.mu.Unlock()
	return slices.Clone(d.watch.violations)
}

// Repeats returns the calls so far that staged or published again what was staged or published already.
func (d *Driver) Repeats() []string {
	d.watch.mu.Lock()
	defer d.watch.mu.Unlock()
	return slices.Clone(d.watch.repeats)
}

// before checks a call that the driver is about to carry out.
func (w *watch) before(req any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stagings == nil {
		w.stagings, w.targets = map[string]string{}, map[string]target{}
	}
	switch r := req.(type) {
	case *csi.NodeStageVolumeRequest:
		if _, there := w.stagings[r.GetStagingTargetPath()]; there {
			w.repeats = append(w.repeats, fmt.Sprintf("stage %s at %s", r.GetVolumeId(), r.GetStagingTargetPath()))
		}
		for path, volume := range w.stagings {
			w.forbid(volume == r.GetVolumeId() && path != r.GetStagingTargetPath(), "stage %s at %s while it is staged at %s",
				volume, r.GetStagingTargetPath(), path)
		}
		w.stagings[r.GetStagingTargetPath()] = r.GetVolumeId()
	case *csi.NodePublishVolumeRequest:
		w.publish(r)
	case *csi.NodeUnstageVolumeRequest:
		for path, t := range w.targets {
			w.forbid(t.staging == r.GetStagingTargetPath(), "unstage %s from %s, from where it is published at %s",
				r.GetVolumeId(), t.staging, path)
		}
	case *csi.ControllerUnpublishVolumeRequest:
		for path, volume := range w.stagings {
			w.forbid(volume == r.GetVolumeId(), "detach %s, which is staged at %s", volume, path)
		}
		for path, t := range w.targets {
			w.forbid(t.volume == r.GetVolumeId(), "detach %s, which is published at %s", t.volume, path)
		}
	}
}

func (w *watch) publish(r *csi.NodePublishVolumeRequest) {
	path, staging := r.GetTargetPath(), r.GetStagingTargetPath()
	if _, there := w.targets[path]; there {
		w.repeats = append(w.repeats, fmt.Sprintf("publish %s at %s", r.GetVolumeId(), path))
	}
	w.forbid(staging != "" && w.stagings[staging] != r.GetVolumeId(), "publish %s at %s, which is not staged at %s",
		r.GetVolumeId(), path, staging)
	mode := r.GetVolumeCapability().GetAccessMode().GetMode()
	for other, t := range w.targets {
		w.forbid(other != path && t.volume == r.GetVolumeId() && (exclusive(mode) || t.mode != mode),
			"publish %s at %s for %s while it is at %s for %s", r.GetVolumeId(), path, mode, other, t.mode)
	}
	w.targets[path] = target{r.GetVolumeId(), staging, mode}
}

// exclusive says that a mode is for one user at a time. Pannier treats SINGLE_NODE_WRITER in this way; the spec
// leaves it open.
func exclusive(m csi.VolumeCapability_AccessMode_Mode) bool {
	return m == csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER ||
		m == csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
}

// after records a call that has succeeded.
func (w *watch) after(req any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch r := req.(type) {
	case *csi.NodeUnstageVolumeRequest:
		delete(w.stagings, r.GetStagingTargetPath())
	case *csi.NodeUnpublishVolumeRequest:
		delete(w.targets, r.GetTargetPath())
	}
}

// forbid records a violation. The caller holds w.mu.
func (w *watch) forbid(broken bool, format string, args ...any) {
	if broken {
		w.violations = append(w.violations, fmt.Sprintf(format, args...))
	}
}
