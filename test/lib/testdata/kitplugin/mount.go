package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/storage"
)

func (v *volumes) Attach(ctx context.Context, d storage.Driver, req storage.AttachRequest) (map[string]string, error) {
	at := "1"
	if v.mode == "fickle-context" {
		at = v.again()
	}
	return map[string]string{"at": at}, v.call(ctx, d, "attach", req.Volume)
}

func (v *volumes) Detach(ctx context.Context, d storage.Driver, vol storage.Volume, _ string) error {
	return v.call(ctx, d, "detach", vol)
}

// Stage binds the volume to the staging path. A block device is not staged.
func (v *volumes) Stage(ctx context.Context, d storage.Driver, req storage.StageRequest) error {
	if err := v.call(ctx, d, "stage", req.Volume); err != nil {
		return err
	}
	if v.mode == "broken" {
		return status.Error(codes.FailedPrecondition, "it never works")
	}
	defer v.exclusively()()
	if err := v.done(req.Volume.Name + ".staged"); err != nil {
		return err
	}
	if req.Volume.Capability.AttachmentMode == storage.BlockDevice || mounted(req.StagingPath) && v.mode != "stacks-stages" {
		return nil
	}
	return syscall.Mount(v.data(req.Volume.ExternalID), req.StagingPath, "", syscall.MS_BIND, "")
}

func (v *volumes) Unstage(ctx context.Context, d storage.Driver, vol storage.Volume, staging string) error {
	if err := v.call(ctx, d, "unstage", vol); err != nil {
		return err
	}
	defer v.exclusively()()
	switch {
	case v.mode == "strict" && !v.made(vol.Name+".staged"):
		return status.Error(codes.FailedPrecondition, "it was never staged")
	case v.mode == "keeps-staged":
		return nil
	case v.mode == "loses-at-unstage" && mounted(staging):
		if err := empty(staging); err != nil {
			return err
		}
	}
	return unmount(staging)
}

// Publish binds the volume to the target path, which it makes.
func (v *volumes) Publish(ctx context.Context, d storage.Driver, req storage.PublishRequest) error {
	if err := v.call(ctx, d, "publish", req.Volume); err != nil {
		return err
	}
	defer v.exclusively()()
	v.mu.Lock()
	v.seen["published"+req.Volume.Name] = true
	v.mu.Unlock()
	block := req.Volume.Capability.AttachmentMode == storage.BlockDevice
	if v.mode == "mounts-nothing" {
		return nil
	}
	if mounted(req.TargetPath) {
		switch {
		case block:
			return nil
		case v.mode == "empties-published":
			if err := unmount(req.TargetPath); err != nil {
				return err
			}
			return syscall.Mount("fixture", req.TargetPath, "tmpfs", 0, "size=1m")
		case v.mode != "stacks":
			return nil
		}
	}
	if v.mode == "races" {
		time.Sleep(20 * time.Millisecond)
	}
	if block {
		return v.publishDevice(req)
	}
	if !mounted(req.StagingPath) {
		return errNotStaged
	}
	if err := os.MkdirAll(req.TargetPath, 0o700); err != nil {
		return err
	}
	source := req.StagingPath
	switch {
	case v.mode == "serves-tmpfs":
		return syscall.Mount("fixture", req.TargetPath, "tmpfs", 0, fmt.Sprint("size=", 1<<30))
	case v.mode == "copies-for-others" && during("data.shared", req.Volume) && filepath.Base(req.TargetPath) == "b":
		source = filepath.Join(v.state, "copy-"+req.Volume.Name)
		if err := errors.Join(os.RemoveAll(source), copyTree(source, req.StagingPath)); err != nil {
			return err
		}
	case v.mode == "loses-when-killed" && during("data.kept", req.Volume):
		return v.publishCopy(req)
	}
	if err := syscall.Mount(source, req.TargetPath, "", syscall.MS_BIND, ""); err != nil || !req.ReadOnly ||
		v.mode == "ignores-read-only" {
		return err
	}
	return syscall.Mount("", req.TargetPath, "", syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_RDONLY, "")
}

func (v *volumes) publishDevice(req storage.PublishRequest) error {
	device, err := attachDevice(v.data(req.Volume.ExternalID), req.ReadOnly && v.mode != "writes-devices")
	if err != nil {
		return err
	}
	if err := os.WriteFile(req.TargetPath, nil, 0o600); err != nil {
		return err
	}
	return syscall.Mount(device, req.TargetPath, "", syscall.MS_BIND, "")
}

// publishCopy serves a copy of the volume, which Unpublish of the same process writes back.
func (v *volumes) publishCopy(req storage.PublishRequest) error {
	if err := syscall.Mount("fixture", req.TargetPath, "tmpfs", 0, ""); err != nil {
		return err
	}
	v.mu.Lock()
	v.copies[req.TargetPath] = true
	v.mu.Unlock()
	return copyTree(req.TargetPath, req.StagingPath)
}

func (v *volumes) Unpublish(ctx context.Context, d storage.Driver, vol storage.Volume, target string) error {
	if err := v.call(ctx, d, "unpublish", vol); err != nil {
		return err
	}
	defer v.exclusively()()
	v.mu.Lock()
	published, copied := v.seen["published"+vol.Name], v.copies[target]
	v.mu.Unlock()
	switch {
	case v.mode == "remembers" && v.made(vol.Name+".staged") && !published:
		return status.Error(codes.FailedPrecondition, "this process has not published it")
	case v.mode == "leaves-mount":
		return nil
	case v.mode == "waits" && during("data.kept", vol) && os.Mkdir(filepath.Join(v.state, "waiting"), 0o700) == nil:
		<-ctx.Done()
		return ctx.Err()
	case v.mode == "loses-at-unpublish" && mounted(target):
		_ = empty(target) // fails if it is read-only
	case copied && mounted(target):
		path := v.data(vol.ExternalID)
		if err := errors.Join(empty(path), copyTree(path, target)); err != nil {
			return err
		}
	case v.mode == "unpublishes-all" && during("data.shared", vol):
		others, err := filepath.Glob(filepath.Join(filepath.Dir(target), "[a-c]"))
		if err != nil {
			return err
		}
		for _, other := range others {
			if err := unmount(other); err != nil {
				return err
			}
		}
	}
	if vol.Capability.AttachmentMode == storage.BlockDevice && mounted(target) {
		if err := detachDevice(target); err != nil {
			return err
		}
	}
	if err := unmount(target); err != nil || v.mode == "leaves-target" {
		return err
	}
	if err := os.Remove(target); err != nil && exists(target) {
		return err
	}
	return nil
}

// during reports whether a volume belongs to a check.
func during(check string, vol storage.Volume) bool {
	return strings.HasPrefix(vol.Name, "conf-"+strings.ReplaceAll(check, ".", "-"))
}

// unmount unmounts everything at a path.
func unmount(path string) error {
	for mounted(path) {
		if err := syscall.Unmount(path, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) {
			return fmt.Errorf("unmount: %w", err)
		}
	}
	return nil
}

func mounted(path string) bool {
	text, err := os.ReadFile("/proc/self/mountinfo")
	return err == nil && strings.Contains(string(text), " "+path+" ")
}
