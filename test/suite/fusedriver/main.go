// Command fusedriver is a CSI driver (CSI spec 1.13) for tests: a child process serves each volume, a directory, as a
// FUSE file system, as drivers of object stores do. `fusedriver changes` serves one whose changes fail and are late.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func main() {
	run := serve
	args := os.Args[1:]
	if len(args) == 3 && args[0] == "mount" {
		run = func(args []string) error { return mount(args[1], args[2]) }
	}
	if len(args) == 1 && args[0] == "changes" {
		run = func([]string) error { return mountChanges(os.Stdin, os.Stdout) }
	}
	if err := run(args); err != nil {
		fmt.Fprintln(os.Stderr, "fusedriver:", err)
		os.Exit(1)
	}
}

// mount serves a directory at a target until it is unmounted. It closes descriptor 3 once it serves.
func mount(dir, target string) error {
	root, err := fs.NewLoopbackRoot(dir)
	if err != nil {
		return err
	}
	options := &fs.Options{MountOptions: fuse.MountOptions{FsName: dir, Name: "fusedriver", DirectMountStrict: true}}
	server, err := fs.Mount(target, root, options)
	if err != nil {
		return err
	}
	ready := os.NewFile(3, "ready")
	_, err = ready.WriteString("ready")
	if err := errors.Join(err, ready.Close()); err != nil {
		return err
	}
	server.Wait()
	return nil
}

// serve is the driver.
func serve(args []string) error {
	flags := flag.NewFlagSet("fusedriver", flag.ContinueOnError)
	endpoint := flags.String("endpoint", "", "the socket to listen on, unix:///path")
	d := &driver{}
	flags.StringVar(&d.dir, "dir", "", "the directory with a directory for each volume")
	flags.StringVar(&d.version, "version", "1", "its version")
	flags.BoolVar(&d.stuck, "stuck", false, "let no volume be unpublished")
	if err := flags.Parse(args); err != nil {
		return err
	}
	socket, unix := strings.CutPrefix(*endpoint, "unix://")
	if !unix || d.dir == "" {
		return errors.New("-endpoint unix:///path and -dir are needed")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, d)
	csi.RegisterNodeServer(server, d)
	context.AfterFunc(ctx, server.Stop)
	return server.Serve(l)
}

type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	dir, version string
	stuck        bool
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "fuse.csi.pannier.example", VendorVersion: d.version}, nil
}

func (d *driver) GetPluginCapabilities(context.Context,
	*csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

func (d *driver) NodeGetCapabilities(context.Context,
	*csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "node"}, nil
}

func (d *driver) NodePublishVolume(_ context.Context,
	req *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	var st unix.Statfs_t
	target, from := req.GetTargetPath(), filepath.Join(d.dir, req.GetVolumeId())
	if unix.Statfs(target, &st) == nil && st.Type == unix.FUSE_SUPER_MAGIC {
		return &csi.NodePublishVolumeResponse{}, nil // it was published before
	}
	if err := errors.Join(os.MkdirAll(from, 0o700), os.MkdirAll(target, 0o700)); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if err := start(from, target); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// start starts a child that mounts a directory, and waits until it serves.
func start(from, target string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	child := exec.Command(self, "mount", from, target)
	child.Stdout, child.Stderr, child.ExtraFiles = os.Stdout, os.Stderr, []*os.File{w}
	err = child.Start()
	if err := errors.Join(err, w.Close()); err != nil {
		return err
	}
	go func() { _ = child.Wait() }()
	said, err := io.ReadAll(r)
	if err == nil && string(said) != "ready" {
		err = errors.New("the child that mounts it has ended")
	}
	return err
}

func (d *driver) NodeUnpublishVolume(_ context.Context,
	req *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	if d.stuck {
		return nil, status.Error(codes.Internal, "nothing is unpublished")
	}
	err := unix.Unmount(req.GetTargetPath(), unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if err := os.Remove(req.GetTargetPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}
