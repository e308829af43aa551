package driver

import (
	"context"
	"errors"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/drivers/csi-local/internal/filesystem"
	"github.com/pannier/pannier/drivers/csi-local/internal/store"
)

// publication is a parsed NodePublishVolume request.
type publication struct {
	store.Volume
	access
	staging, target string // resolved
	readOnly        bool   // by the request, the mode or the flags
}

// NodePublishVolume makes a staged volume appear at the target path.
func (d node) NodePublishVolume(ctx context.Context,
	req *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	switch {
	case req.GetVolumeId() == "":
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	case req.GetTargetPath() == "":
		return nil, status.Error(codes.InvalidArgument, "target_path is missing")
	}
	a, err := nodeCapability(req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	if isEphemeral(req) {
		if err := d.publishEphemeral(ctx, req, a); err != nil {
			return nil, failed(err)
		}
		return &csi.NodePublishVolumeResponse{}, nil
	}
	v, end, err := d.begin("NodePublishVolume", req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer end()
	p := publication{Volume: v, access: a, readOnly: req.GetReadonly() || a.stageOptions().ReadOnly()}
	if err := p.resolve(req); err != nil {
		return nil, err
	}
	u, err := d.usage(v.ID)
	if err != nil {
		return nil, failed(err)
	}
	if a.block {
		err = d.publishBlock(ctx, u, p)
	} else {
		err = publishFileSystem(u, p)
	}
	if err != nil {
		return nil, failed(err)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (p *publication) resolve(req *csi.NodePublishVolumeRequest) error {
	if req.GetStagingTargetPath() == "" {
		return status.Error(codes.FailedPrecondition, "staging_target_path is missing: call NodeStageVolume first")
	}
	var err error
	if p.staging, err = filesystem.Resolve(req.GetStagingTargetPath()); err != nil {
		return status.Errorf(codes.FailedPrecondition, "staging_target_path: %v: call NodeStageVolume first", err)
	}
	if p.target, err = filesystem.Resolve(req.GetTargetPath()); err != nil {
		return status.Errorf(codes.InvalidArgument, "target_path: %v: the caller makes its parent", err)
	}
	if p.target == p.staging {
		return status.Errorf(codes.InvalidArgument, "target_path and staging_target_path are both %q", p.target)
	}
	return nil
}

func (p *publication) notStaged() error {
	return status.Errorf(codes.FailedPrecondition,
		"volume %q is not staged at %q in this mode: call NodeStageVolume first", p.ID, p.staging)
}

// checkAlone refuses a second target in the single-writer mode.
func (p *publication) checkAlone(u usage) error {
	if p.mode != csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER {
		return nil
	}
	if others := u.elsewhere(p.staging, stagedNode(p.staging), p.target); len(others) > 0 {
		return status.Errorf(codes.FailedPrecondition,
			"volume %q has a single writer and is published at %q already: unpublish it there first", p.ID, others)
	}
	return nil
}

// publishFileSystem binds the staged mount to the target directory.
func publishFileSystem(u usage, p publication) error {
	staged := u.at(p.staging).fs
	switch {
	case staged == nil:
		return p.notStaged()
	case p.fsType != "" && p.fsType != staged.FSType:
		return status.Errorf(codes.FailedPrecondition, "volume %q holds %s and the capability asks for %s", p.ID,
			staged.FSType, p.fsType)
	case !p.readOnly && filesystem.IsReadOnly(staged):
		return status.Errorf(codes.FailedPrecondition,
			"volume %q is staged read-only at %q: publish it read-only, or stage it in a mode with a writer", p.ID, p.staging)
	}
	opts := p.options
	if p.readOnly {
		opts = opts.WithReadOnly()
	}
	switch at := u.at(p.target); {
	case at.other != nil:
		return foreign("target_path", p.ID, at.other)
	case at.node != nil:
		return p.conflict(errors.New("as a block device"))
	case at.fs != nil:
		if err := opts.Match(at.fs); err != nil {
			return p.conflict(err)
		}
		return nil
	}
	if err := p.checkAlone(u); err != nil {
		return err
	}
	if err := makeDir(p.target); err != nil {
		return err
	}
	return filesystem.Bind(p.staging, p.target, opts)
}

// makeDir makes the target directory, or accepts an existing one.
func makeDir(path string) error {
	err := os.Mkdir(path, 0o750)
	if !errors.Is(err, os.ErrExist) {
		return err
	}
	if info, err := os.Lstat(path); err != nil || !info.IsDir() {
		return status.Errorf(codes.InvalidArgument, "target_path %q exists and is not a directory: choose another target",
			path)
	}
	return nil
}

func (p *publication) conflict(why error) error {
	return status.Errorf(codes.AlreadyExists,
		"volume %q is published at %s already, but %v: unpublish it first", p.ID, p.target, why)
}

// publishBlock binds a device node to the target file. A read-only publication gets a separate device, because a
// read-only bind of a device node would not prevent writes.
func (d node) publishBlock(ctx context.Context, u usage, p publication) error {
	staged := u.at(stagedNode(p.staging)).node
	if staged == nil || (staged.device.ReadOnly && !p.readOnly) {
		return p.notStaged()
	}
	return d.bindNode(ctx, u, p.ID, p.readOnly, p.target, p.checkAlone)
}

// NodeUnpublishVolume unmounts the volume from the target path and removes the path. It leaves a path alone if
// something else is mounted there.
func (d node) NodeUnpublishVolume(ctx context.Context,
	req *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	if done, err := d.unpublishEphemeral(ctx, req); done || err != nil {
		return &csi.NodeUnpublishVolumeResponse{}, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, d.release(ctx, "NodeUnpublishVolume", req.GetVolumeId(), "target_path",
		req.GetTargetPath(), func(path string) []string { return []string{path} })
}
