package sdk

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
)

// hostLink hands out connections to the host. The host opens them, so one is there only while a host runs.
type hostLink struct{ conns chan net.Conn }

// toHost is this process's way to its host.
var toHost = &hostLink{conns: make(chan net.Conn)}

// dial waits for a connection until ctx ends.
func (l *hostLink) dial(ctx context.Context) (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-ctx.Done():
		return nil, &net.OpError{Op: "dial", Net: "host", Err: ctx.Err()}
	}
}

// hostService implements HostService for every kind.
type hostService struct {
	pluginv1.UnimplementedHostServiceServer
	link    *hostLink
	metrics *metricSet
	sockets *inherited
	ended   chan struct{}
	once    sync.Once
}

func newHostService(link *hostLink, metrics *metricSet, sockets *inherited) *hostService {
	return &hostService{link: link, metrics: metrics, sockets: sockets, ended: make(chan struct{})}
}

// Connect offers a connection to the parts of the plugin that need one, and serves it.
func (s *hostService) Connect(stream grpc.BidiStreamingServer[pluginv1.ConnectRequest, pluginv1.ConnectResponse],
) error {
	near, far := net.Pipe()
	defer func() { _ = near.Close() }()
	select {
	case s.link.conns <- far:
	case <-stream.Context().Done():
		return nil
	case <-s.ended:
		return nil
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-s.ended:
			_ = near.Close()
		case <-done:
		}
	}()
	return wire.Splice(near,
		func(data []byte) error { return stream.Send(&pluginv1.ConnectResponse{Data: data}) },
		func() ([]byte, error) {
			msg, err := stream.Recv()
			return msg.GetData(), err
		})
}

// Metrics returns the metrics of this process.
func (s *hostService) Metrics(context.Context, *pluginv1.MetricsRequest) (*pluginv1.MetricsResponse, error) {
	return &pluginv1.MetricsResponse{Metrics: s.metrics.collect()}, nil
}

// HandOver sends the listening sockets to the host.
func (s *hostService) HandOver(ctx context.Context, req *pluginv1.HandOverRequest,
) (*pluginv1.HandOverResponse, error) {
	names, err := s.sockets.handOver(ctx, req.GetSocket(), req.GetNonce())
	return &pluginv1.HandOverResponse{Names: names}, err
}

// finish ends the connections. It is called last: the plugin may still need its host in Close.
func (s *hostService) finish() { s.once.Do(func() { close(s.ended) }) }

// DialHost opens a connection to the host, over which the host serves this plugin: its state and, for a front door,
// the API (HTTP/2 without TLS of its own; the plugin's connection has it). It waits while no host runs.
func DialHost(ctx context.Context) (net.Conn, error) { return toHost.dial(ctx) }
