package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/storage"
)

// These interfaces are optional. The host finds out by the methods which of them dirs implements.
var (
	_ storage.Provisioner   = (*dirs)(nil)
	_ storage.StatsReader   = (*dirs)(nil)
	_ storage.DriverBringer = (*dirs)(nil)
)

// Create makes a directory. If it exists already, it is the volume of an earlier attempt.
func (d *dirs) Create(ctx context.Context, driver storage.Driver, req storage.CreateRequest) (storage.CreateResponse,
	error,
) {
	var none storage.CreateResponse
	if req.SnapshotID != "" || req.CloneID != "" {
		return none, status.Error(codes.InvalidArgument, "a folder is made empty: no snapshot and no clone")
	}
	for _, c := range req.Capabilities {
		if err := check(c); err != nil {
			return none, err
		}
	}
	path, err := folder(driver, req.Name)
	if err != nil {
		return none, err
	}
	_, span := sdk.Span(ctx, "make the folder") // in the trace of the host's call
	defer span.End()
	mode := d.Get().mode
	if err := os.Mkdir(path, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return none, status.Errorf(codes.Unavailable, "make the volume: %v", err)
	}
	if err := os.Chmod(path, mode); err != nil { // regardless of the umask
		return none, status.Errorf(codes.Internal, "make the volume: %v", err)
	}
	return storage.CreateResponse{ExternalID: req.Name}, nil
}

// Delete removes a directory with its content. It succeeds if the directory does not exist.
func (*dirs) Delete(_ context.Context, driver storage.Driver, v storage.Volume) error {
	path, err := folder(driver, v.ExternalID)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(path); err != nil {
		return status.Errorf(codes.Internal, "delete the volume: %v", err)
	}
	return nil
}

// List lists the directories in pages. The token of a page is the number of its first directory.
func (*dirs) List(_ context.Context, driver storage.Driver, page storage.Page) (storage.ListResponse, error) {
	var res storage.ListResponse
	entries, err := os.ReadDir(root(driver))
	if err != nil {
		return res, status.Errorf(codes.Unavailable, "list the volumes: %v", err)
	}
	begin := 0
	if page.Token != "" {
		if begin, err = strconv.Atoi(page.Token); err != nil || begin < 0 || begin > len(entries) {
			return res, status.Errorf(codes.Aborted, "the list has no page %q: start over", page.Token)
		}
	}
	for n := begin; n < len(entries); n++ {
		if page.Max > 0 && len(res.Volumes) == page.Max {
			res.Next = strconv.Itoa(n)
			break
		}
		if entries[n].IsDir() {
			res.Volumes = append(res.Volumes, storage.ListedVolume{ExternalID: entries[n].Name()})
		}
	}
	return res, nil
}

// VolumeStats reports the usage of the file system that contains the directory.
func (*dirs) VolumeStats(_ context.Context, driver storage.Driver, req storage.StatsRequest) (storage.Stats, error) {
	path, err := existing(driver, req.Volume.ExternalID)
	if err != nil {
		return storage.Stats{}, err
	}
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return storage.Stats{}, status.Errorf(codes.Internal, "look at the file system of %s: %v", path, err)
	}
	size := s.Bsize
	return storage.Stats{Usage: []storage.Usage{
		{
			Unit: storage.Bytes, Total: int64(s.Blocks) * size, Available: int64(s.Bavail) * size,
			Used: int64(s.Blocks-s.Bfree) * size,
		},
		{Unit: storage.Inodes, Total: int64(s.Files), Available: int64(s.Ffree), Used: int64(s.Files - s.Ffree)},
	}}, nil
}
