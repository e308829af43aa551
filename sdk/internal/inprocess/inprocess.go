// Package inprocess serves a plugin in the process of a test or an example, and connects to it as a host does.
package inprocess

import (
	"context"
	"io"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/pannier/pannier/sdk"
)

// Serve serves p and returns a connection to it. stop closes the connection, lets the calls in flight finish and
// closes the implementation.
func Serve(info sdk.Info, p sdk.Plugin) (conn *grpc.ClientConn, stop func() error, err error) {
	listener := bufconn.Listen(1 << 20)
	conn, err = grpc.NewClient("passthrough:///plugin",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		return nil, nil, err
	}
	srv, stopServer := sdk.NewServer(info, p)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(listener) }()
	return conn, func() error {
		_ = conn.Close() // ends the calls that are left open
		stopServer()
		if err := <-served; err != nil {
			return err
		}
		if p.Finish != nil {
			p.Finish()
		}
		if c, ok := sdk.As[io.Closer](p.Impl); ok {
			return c.Close()
		}
		return nil
	}, nil
}
