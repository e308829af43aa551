// Command cephlike is a CSI driver for tests with the layout of ceph-csi: the controller and the staging need secrets,
// the volume is mounted below the staging path, in a folder named for it, and a file beside that folder says what is
// staged. Its images are folders of a share.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "cephlike:", err)
		os.Exit(1)
	}
}

func run() error {
	endpoint := flag.String("endpoint", "", "the socket to listen on, unix:///path")
	d := &driver{}
	flag.StringVar(&d.node, "nodeid", "", "this node")
	flag.StringVar(&d.share, "share", "", "the folder of the images")
	flag.Parse()
	socket, isUnix := strings.CutPrefix(*endpoint, "unix://")
	if !isUnix || d.node == "" || d.share == "" {
		return errors.New("-endpoint unix:///path, -nodeid and -share are needed")
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) { // a killed driver leaves it
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, d)
	csi.RegisterControllerServer(server, d)
	csi.RegisterNodeServer(server, d)
	return server.Serve(l)
}

// metadata is the file below a staging path.
const metadata = "image-meta.json"

type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
	node, share string
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "cephlike.pannier.test", VendorVersion: "1"}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (
	*csi.GetPluginCapabilitiesResponse, error,
) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{
		Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{
			Type: csi.PluginCapability_Service_CONTROLLER_SERVICE,
		}},
	}}}, nil
}

func (d *driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (
	*csi.ControllerGetCapabilitiesResponse, error,
) {
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: []*csi.ControllerServiceCapability{{
		Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{
			Type: csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		}},
	}}}, nil
}

func (d *driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (
	*csi.NodeGetCapabilitiesResponse, error,
) {
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{{
		Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{
			Type: csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		}},
	}}}, nil
}

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.node}, nil
}

// signedIn checks the key of Ceph's user.
func signedIn(secrets map[string]string) error {
	if secrets["userID"] == "" || secrets["userKey"] != "ceph-key" {
		return status.Error(codes.InvalidArgument, "provided secret is empty or wrong")
	}
	return nil
}

func (d *driver) image(id string) (string, error) {
	if id == "" || strings.Contains(id, "/") || id[0] == '.' {
		return "", status.Errorf(codes.InvalidArgument, "%q is no volume id", id)
	}
	return filepath.Join(d.share, id), nil
}

func (d *driver) CreateVolume(_ context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if err := signedIn(req.GetSecrets()); err != nil {
		return nil, err
	}
	for _, c := range req.GetVolumeCapabilities() {
		if c.GetBlock() != nil {
			return nil, status.Error(codes.InvalidArgument, "a file system is needed")
		}
	}
	id := fmt.Sprintf("0001-%x", sha256.Sum256([]byte(req.GetName())))[:40]
	if err := os.MkdirAll(filepath.Join(d.share, id), 0o755); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId: id, CapacityBytes: req.GetCapacityRange().GetRequiredBytes(), VolumeContext: req.GetParameters(),
	}}, nil
}

func (d *driver) DeleteVolume(_ context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if err := signedIn(req.GetSecrets()); err != nil {
		return nil, err
	}
	image, err := d.image(req.GetVolumeId())
	if err == nil {
		err = os.RemoveAll(image)
	}
	return &csi.DeleteVolumeResponse{}, err
}

func (d *driver) ValidateVolumeCapabilities(_ context.Context, req *csi.ValidateVolumeCapabilitiesRequest) (
	*csi.ValidateVolumeCapabilitiesResponse, error,
) {
	image, err := d.image(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(image); err != nil {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeCapabilities: req.GetVolumeCapabilities(),
	}}, nil
}

// NodeStageVolume mounts below the staging path, and writes the metadata before that.
func (d *driver) NodeStageVolume(_ context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse,
	error,
) {
	if err := signedIn(req.GetSecrets()); err != nil {
		return nil, err
	}
	image, err := d.image(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	staging := req.GetStagingTargetPath()
	at := filepath.Join(staging, req.GetVolumeId())
	if err := errors.Join(
		os.MkdirAll(at, 0o750),
		os.WriteFile(filepath.Join(staging, metadata), fmt.Appendf(nil, "{%q: %q}", "imageName", image), 0o600),
		bind(image, at, false),
	); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

// NodeUnstageVolume does nothing where there is no metadata.
func (d *driver) NodeUnstageVolume(_ context.Context, req *csi.NodeUnstageVolumeRequest) (
	*csi.NodeUnstageVolumeResponse, error,
) {
	file := filepath.Join(req.GetStagingTargetPath(), metadata)
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		return &csi.NodeUnstageVolumeResponse{}, nil
	}
	err := unmount(filepath.Join(req.GetStagingTargetPath(), req.GetVolumeId()))
	if err == nil {
		err = os.Remove(file)
	}
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

func (d *driver) NodePublishVolume(_ context.Context, req *csi.NodePublishVolumeRequest) (
	*csi.NodePublishVolumeResponse, error,
) {
	if req.GetVolumeCapability().GetBlock() != nil || req.GetStagingTargetPath() == "" {
		return nil, status.Error(codes.InvalidArgument, "a file system is needed, and is not staged")
	}
	err := os.MkdirAll(req.GetTargetPath(), 0o750)
	if err == nil {
		err = bind(filepath.Join(req.GetStagingTargetPath(), req.GetVolumeId()), req.GetTargetPath(), req.GetReadonly())
	}
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (d *driver) NodeUnpublishVolume(_ context.Context, req *csi.NodeUnpublishVolumeRequest) (
	*csi.NodeUnpublishVolumeResponse, error,
) {
	if err := unmount(req.GetTargetPath()); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// bind mounts a folder at a path, unless it is mounted there.
func bind(from, at string, readOnly bool) error {
	var source, have unix.Stat_t
	if err := errors.Join(unix.Stat(from, &source), unix.Stat(at, &have)); err != nil {
		return err
	}
	if source.Dev == have.Dev && source.Ino == have.Ino {
		return nil
	}
	if err := unix.Mount(from, at, "", unix.MS_BIND, ""); err != nil || !readOnly {
		return err
	}
	return unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

// unmount removes the folder, too.
func unmount(path string) error {
	err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
