package wire

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
)

const (
	// maxConns bounds the connections of one process to its host, the unused one included.
	maxConns = 8
	// offerPause is the pause before a connection that a process has ended, or never opened, is offered again.
	offerPause = 200 * time.Millisecond
)

// Offer keeps one unused connection from a plugin's process to its host open, up to 8 in all, and gives each to accept
// when the process has begun to use it. It returns when ctx has ended or conn is closed, or at once if the process has
// no HostService, and when the connections have ended too.
func Offer(ctx context.Context, conn *grpc.ClientConn, accept func(net.Conn)) {
	slots := make(chan struct{}, maxConns)
	var running sync.WaitGroup
	defer running.Wait()
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		err := offer(ctx, conn, &running, accept, func() { <-slots })
		switch {
		case err == nil:
			continue
		case status.Code(err) == codes.Unimplemented || conn.GetState() == connectivity.Shutdown:
			return
		}
		select {
		case <-time.After(offerPause):
		case <-ctx.Done():
			return
		}
	}
}

// offer opens a connection, and returns nil when the process has begun to use it. release is called when it has ended.
func offer(ctx context.Context, conn *grpc.ClientConn, running *sync.WaitGroup, accept func(net.Conn),
	release func(),
) error {
	ctx, cancel := context.WithCancel(ctx)
	end := func() { cancel(); release() }
	stream, err := pluginv1.NewHostServiceClient(conn).Connect(ctx)
	if err != nil {
		end()
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		end()
		return err
	}
	near, far := net.Pipe()
	running.Go(func() {
		defer end()
		_ = Splice(near, // how it ended is of no use to anybody
			func(data []byte) error { return stream.Send(&pluginv1.ConnectRequest{Data: data}) },
			func() ([]byte, error) {
				if first != nil {
					data := first.GetData()
					first = nil
					return data, nil
				}
				msg, err := stream.Recv()
				return msg.GetData(), err
			})
	})
	accept(far)
	return nil
}
