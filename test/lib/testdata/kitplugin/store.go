package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/storage"
)

// A volume is the tmpfs STATE/vol/ID, of the volume's capacity, or the file STATE/vol/ID for a block device, and its
// description STATE/vol/ID.json. A snapshot is the folder STATE/snap/ID.

// made is a volume's description.
type made struct {
	Capacity int64
	Block    bool
	From     string // its source
}

// oneSize is the capacity of all volumes of a driver that makes no others.
const oneSize = 1 << 30

func (v *volumes) data(id string) string {
	if v.mode == "mixes" && strings.HasPrefix(id, "ext-conf-data-own") {
		id = "ext-all"
	}
	return filepath.Join(v.state, "vol", id)
}

func (v *volumes) snap(id string) string { return filepath.Join(v.state, "snap", id) }

// exclusively serialises the calls of all processes, so that each sees the whole effect of the one before.
func (v *volumes) exclusively() (unlock func()) {
	f, err := os.OpenFile(filepath.Join(v.state, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil || v.mode == "races" {
		return func() {}
	}
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	return func() { f.Close() }
}

// find returns a volume's description.
func (v *volumes) find(id string) (m made, err error) {
	text, err := os.ReadFile(v.data(id) + ".json")
	if err != nil {
		return m, status.Error(codes.NotFound, "no such volume")
	}
	return m, json.Unmarshal(text, &m)
}

// keepVolume writes a description.
func (v *volumes) keepVolume(id string, m made) error {
	text, err := json.Marshal(m)
	if err == nil {
		err = os.WriteFile(v.data(id)+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(v.data(id)+".new", v.data(id)+".json")
	}
	return err
}

func (v *volumes) Create(ctx context.Context, d storage.Driver, req storage.CreateRequest) (storage.CreateResponse,
	error,
) {
	var none storage.CreateResponse
	if err := v.call(ctx, d, "create", storage.Volume{Name: req.Name, Secrets: req.Secrets}); err != nil {
		return none, err
	}
	defer v.exclusively()()
	id := "ext-" + req.Name
	want := made{Capacity: req.CapacityMin, From: req.SnapshotID + req.CloneID}
	if v.mode == "one-size" {
		want.Capacity = oneSize
	}
	for _, c := range req.Capabilities {
		want.Block = want.Block || c.AttachmentMode == storage.BlockDevice
	}
	m, err := v.find(id)
	switch {
	case v.mode == "one-size" && (req.CapacityMin > oneSize || req.CapacityMax > 0 && req.CapacityMax < oneSize):
		err = status.Error(codes.OutOfRange, "the volumes have one size")
	case err == nil && v.mode == "remakes":
		err = empty(v.data(id))
	case err == nil && v.mode != "takes-any" && (m.Capacity < req.CapacityMin ||
		req.CapacityMax > 0 && m.Capacity > req.CapacityMax || m.From != want.From || m.Block != want.Block):
		err = status.Error(codes.AlreadyExists, "another volume has that name")
	case err != nil && req.SnapshotID != "" && !exists(v.snap(req.SnapshotID)):
		err = status.Error(codes.NotFound, "no such snapshot")
	case err != nil:
		m, err = want, v.make(id, want, req)
	}
	return storage.CreateResponse{ExternalID: id, Capacity: m.Capacity}, err
}

// make makes a volume, or completes it.
func (v *volumes) make(id string, m made, req storage.CreateRequest) error {
	path := v.data(id)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if m.Block {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return err
		}
		if err := os.Truncate(path, m.Capacity); err != nil {
			return err
		}
		return v.keepVolume(id, m)
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	if !mounted(path) {
		size := m.Capacity
		if v.mode == "any-size" {
			size *= 10
		}
		if err := syscall.Mount("fixture", path, "tmpfs", 0, fmt.Sprint("size=", size)); err != nil {
			return err
		}
	}
	var source string
	switch {
	case req.SnapshotID != "" && v.mode == "follows":
		text, err := os.ReadFile(v.snap(req.SnapshotID) + ".of")
		if err != nil {
			return err
		}
		source = v.data(string(text))
	case req.SnapshotID != "":
		source = v.snap(req.SnapshotID)
	case req.CloneID != "" && v.mode == "same-clone":
		if err := syscall.Mount(v.data(req.CloneID), path, "", syscall.MS_BIND, ""); err != nil {
			return err
		}
	case req.CloneID != "":
		source = v.data(req.CloneID)
	}
	if source != "" {
		if err := empty(path); err != nil { // of an earlier attempt
			return err
		}
		copying := copyTree
		if v.mode == "careless-clone" && req.CloneID != "" {
			copying = func(to, from string) error { return os.CopyFS(to, os.DirFS(from)) }
		}
		if err := copying(path, source); err != nil {
			return err
		}
	}
	return v.keepVolume(id, m)
}

// copyTree copies the content of a folder with its owners and modes.
func copyTree(to, from string) error {
	if out, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput(); err != nil {
		return fmt.Errorf("cp: %w: %s", err, out)
	}
	return nil
}

func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return err
}

func (v *volumes) Delete(ctx context.Context, d storage.Driver, vol storage.Volume) error {
	if err := v.call(ctx, d, "delete", vol); err != nil || vol.ExternalID == "" || v.mode == "keeps-deleted" {
		return err
	}
	defer v.exclusively()()
	path := v.data(vol.ExternalID)
	for mounted(path) {
		if err := syscall.Unmount(path, syscall.MNT_DETACH); err != nil {
			return err
		}
	}
	return errors.Join(os.RemoveAll(path), os.RemoveAll(path+".json"))
}

// page returns one page of the files with a suffix in a folder, without the suffix.
func (v *volumes) page(folder, suffix string, page storage.Page) (ids []string, next string, err error) {
	paths, err := filepath.Glob(filepath.Join(v.state, folder, "*"+suffix))
	if err != nil {
		return nil, "", err
	}
	slices.Sort(paths)
	for _, path := range paths {
		if id := strings.TrimSuffix(filepath.Base(path), suffix); id > page.Token {
			ids = append(ids, id)
		}
	}
	mode := v.mode
	if folder == "snap" { // the modes are about volumes
		mode = ""
	}
	if page.Token != "" && !strings.HasPrefix(page.Token, "ext-") && mode != "any-token" {
		return nil, "", status.Error(codes.Aborted, "start again")
	}
	if page.Max == 0 || len(ids) <= page.Max {
		return ids, "", nil
	}
	next = ids[page.Max-1]
	switch {
	case mode == "loses-entries":
		next = ids[page.Max]
	case mode == "repeats-entries" && page.Token == "":
		next = "ext-"
	}
	return ids[:page.Max], next, nil
}

func (v *volumes) List(_ context.Context, _ storage.Driver, page storage.Page) (res storage.ListResponse, err error) {
	ids, next, err := v.page("vol", ".json", page)
	for _, id := range ids {
		res.Volumes = append(res.Volumes, storage.ListedVolume{ExternalID: id})
	}
	res.Next = next
	return res, err
}

func (v *volumes) ValidateVolume(ctx context.Context, d storage.Driver, req storage.ValidateRequest) ([]string, error) {
	err := v.call(ctx, d, "validate", req.Volume)
	if err == nil && v.mode != "lenient" {
		_, err = v.find(req.Volume.ExternalID)
	}
	return nil, err
}

func (v *volumes) Expand(ctx context.Context, d storage.Driver, req storage.ExpandRequest) (storage.ExpandResponse,
	error,
) {
	if err := v.call(ctx, d, "expand", req.Volume); err != nil {
		return storage.ExpandResponse{}, err
	}
	defer v.exclusively()()
	m, err := v.find(req.Volume.ExternalID)
	if err != nil {
		return storage.ExpandResponse{}, err
	}
	m.Capacity = max(m.Capacity, req.CapacityMin)
	return storage.ExpandResponse{Capacity: m.Capacity, NodeExpansionRequired: true}, v.keepVolume(req.Volume.ExternalID, m)
}

func (v *volumes) ExpandNode(ctx context.Context, d storage.Driver, req storage.ExpandNodeRequest) (int64, error) {
	if err := v.call(ctx, d, "expand-node", req.Volume); err != nil {
		return 0, err
	}
	m, err := v.find(req.Volume.ExternalID)
	if err == nil && v.mode != "claims-to-expand" {
		err = syscall.Mount("", v.data(req.Volume.ExternalID), "", syscall.MS_REMOUNT, fmt.Sprint("size=", m.Capacity))
	}
	return m.Capacity, err
}

func (v *volumes) CreateSnapshot(ctx context.Context, d storage.Driver, req storage.CreateSnapshotRequest) (storage.Snapshot,
	error,
) {
	id := "ext-" + req.Name
	snap := storage.Snapshot{ID: id, VolumeExternalID: req.Volume.ExternalID, Ready: true}
	if err := v.call(ctx, d, "snapshot", req.Volume); err != nil {
		return snap, err
	}
	defer v.exclusively()()
	path := v.snap(id)
	switch of, err := os.ReadFile(path + ".of"); {
	case err == nil && string(of) != req.Volume.ExternalID && v.mode != "takes-any-snapshot":
		return snap, status.Error(codes.AlreadyExists, "another snapshot has that name")
	case err == nil:
		return snap, nil
	}
	err := errors.Join(os.RemoveAll(path), os.MkdirAll(path, 0o700))
	if err == nil && v.mode != "empty-snapshot" {
		err = copyTree(path, v.data(req.Volume.ExternalID))
	}
	if err == nil {
		err = os.WriteFile(path+".of", []byte(req.Volume.ExternalID), 0o600)
	}
	return snap, err
}

func (v *volumes) DeleteSnapshot(_ context.Context, _ storage.Driver, id string, _ map[string]string) error {
	if id == "" {
		return status.Error(codes.InvalidArgument, "no snapshot")
	}
	if v.mode == "keeps-snapshots" {
		return nil
	}
	defer v.exclusively()()
	return errors.Join(os.RemoveAll(v.snap(id)+".of"), os.RemoveAll(v.snap(id)))
}

func (v *volumes) ListSnapshots(_ context.Context, _ storage.Driver,
	req storage.ListSnapshotsRequest,
) (res storage.ListSnapshotsResponse, err error) {
	ids, next, err := v.page("snap", ".of", req.Page)
	if v.mode == "one-snapshot" && len(ids) > 0 {
		ids, next = ids[:1], ""
	}
	for _, id := range ids {
		res.Snapshots = append(res.Snapshots, storage.Snapshot{ID: id})
	}
	res.Next = next
	return res, err
}

func (v *volumes) VolumeStats(ctx context.Context, d storage.Driver, req storage.StatsRequest) (storage.Stats, error) {
	if err := v.call(ctx, d, "stats", req.Volume); err != nil {
		return storage.Stats{}, err
	}
	var s syscall.Statfs_t
	if err := syscall.Statfs(req.VolumePath, &s); err != nil {
		return storage.Stats{}, status.Error(codes.NotFound, err.Error())
	}
	if v.mode == "constant-stats" {
		s.Bfree = s.Blocks / 2
	}
	total, free := int64(s.Blocks)*s.Bsize, int64(s.Bfree)*s.Bsize
	return storage.Stats{Usage: []storage.Usage{
		{Unit: storage.Bytes, Total: total, Available: free, Used: total - free},
	}}, nil
}

// attachDevice makes a block volume's device.
func attachDevice(file string, readOnly bool) (device string, err error) {
	args := []string{"--find", "--show", file}
	if readOnly {
		args = append([]string{"--read-only"}, args...)
	}
	out, err := exec.Command("losetup", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("losetup: %w: %s", err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// detachDevice removes the device whose file is at a path.
func detachDevice(path string) error {
	var s syscall.Stat_t
	if err := syscall.Stat(path, &s); err != nil || s.Mode&syscall.S_IFMT != syscall.S_IFBLK {
		return err
	}
	minor := s.Rdev&0xff | s.Rdev>>12&0xfff00
	return exec.Command("losetup", "--detach", "/dev/loop"+strconv.Itoa(int(minor))).Run()
}

var errNotStaged = status.Error(codes.FailedPrecondition, "it is not staged")

// exists reports whether a path exists.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
