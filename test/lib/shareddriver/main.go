// Command shareddriver is a CSI driver (CSI spec 1.13) for tests and demonstrations with several hosts: its
// volumes are directories below one that all hosts share, like a storage system. It refuses to attach a
// single-node volume to a second node, and logs what it did and when.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "shareddriver:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("shareddriver", flag.ContinueOnError)
	endpoint := flags.String("endpoint", "", "the socket to listen on, unix:///path")
	node := flags.String("node-id", "", "this node, as the controller is to know it")
	dir := flags.String("dir", "", "the directory that all hosts see")
	segments := flags.String("topology", "", "where this node is, such as rack=R1,zone=Z1")
	part := flags.String("part", "", "serve node or controller alone; it declares a controller in either case, like many drivers")
	attach := flags.Bool("attach", true, "volumes have to be attached to a node")
	late := flags.Duration("late", 0, "how long a call that unpublishes, detaches or deletes may take at most, at random")
	if err := flags.Parse(args); err != nil {
		return err
	}
	socket, unix := strings.CutPrefix(*endpoint, "unix://")
	if !unix || *node == "" || *dir == "" {
		return errors.New("-endpoint unix:///path, -node-id and -dir are needed")
	}
	d := &driver{node: *node, attaches: *attach, late: *late, store: store{dir: *dir}}
	if *segments != "" {
		d.segments = map[string]string{}
		for _, one := range strings.Split(*segments, ",") {
			key, value, ok := strings.Cut(one, "=")
			if !ok {
				return fmt.Errorf("-topology: %q is not KEY=VALUE", one)
			}
			d.segments[key] = value
		}
	}
	if err := d.join(*node); err != nil {
		return err
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) { // a killed driver leaves its socket
		return err
	}
	var listen net.ListenConfig
	l, err := listen.Listen(ctx, "unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(complete))
	csi.RegisterIdentityServer(server, d)
	if *part != "node" {
		csi.RegisterControllerServer(server, d)
	}
	if *part != "controller" {
		csi.RegisterNodeServer(server, d)
	}
	defer context.AfterFunc(ctx, server.Stop)()
	return server.Serve(l)
}

// complete refuses a request without a field that the CSI spec requires.
func complete(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	lacks := func(what string) (any, error) {
		return nil, status.Errorf(codes.InvalidArgument, "%T has no %s", req, what)
	}
	if r, has := req.(interface{ GetVolumeId() string }); has && r.GetVolumeId() == "" {
		return lacks("volume_id")
	}
	if r, has := req.(interface{ GetTargetPath() string }); has && r.GetTargetPath() == "" {
		return lacks("target_path")
	}
	if r, has := req.(interface{ GetVolumePath() string }); has && r.GetVolumePath() == "" {
		return lacks("volume_path")
	}
	if r, has := req.(interface {
		GetVolumeCapability() *csi.VolumeCapability
	}); has && r.GetVolumeCapability() == nil && !expands(req) {
		return lacks("volume_capability")
	}
	if r, has := req.(interface {
		GetVolumeCapabilities() []*csi.VolumeCapability
	}); has && len(r.GetVolumeCapabilities()) == 0 {
		return lacks("volume_capabilities")
	}
	if r, has := req.(interface{ GetNodeId() string }); has && r.GetNodeId() == "" {
		return lacks("node_id") // detaching from all nodes is never intended
	}
	return next(ctx, req)
}

// expands reports whether the request expands a volume: its capability is optional.
func expands(req any) bool {
	switch req.(type) {
	case *csi.ControllerExpandVolumeRequest, *csi.NodeExpandVolumeRequest:
		return true
	default:
		return false
	}
}
