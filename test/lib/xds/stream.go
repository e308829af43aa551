package xds

import (
	"context"
	"errors"
	"fmt"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

const (
	clusterType  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	listenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"
)

// Stream is an open ADS stream with the resources received so far. It is for one goroutine.
type Stream struct {
	// Clusters and Listeners of the proxy by name; nil until the first ones have come.
	Clusters  map[string]*clusterv3.Cluster
	Listeners map[string]*listenerv3.Listener

	conn   *grpc.ClientConn
	cancel context.CancelFunc
	ads    discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
}

// Open opens the stream that b describes and subscribes to all clusters and listeners. If the server refuses it,
// Receive returns the error. The stream ends with ctx and with Close.
func Open(ctx context.Context, b *bootstrapv3.Bootstrap) (*Stream, error) {
	service, cluster, err := adsService(b)
	if err != nil {
		return nil, err
	}
	address, err := target(cluster)
	if err != nil {
		return nil, err
	}
	creds, err := transport(cluster)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(creds))
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	for _, header := range service.GetInitialMetadata() {
		ctx = metadata.AppendToOutgoingContext(ctx, header.GetKey(), header.GetValue())
	}
	token, err := injected(cluster)
	if err != nil {
		return nil, fmt.Errorf("read the token of cluster %q: %w", cluster.GetName(), errors.Join(err, conn.Close()))
	}
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "x-consul-token", token)
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &Stream{conn: conn, cancel: cancel}
	if err := s.subscribe(ctx, b); err != nil {
		return nil, fmt.Errorf("open the ADS stream to %s: %w", address, errors.Join(err, s.Close()))
	}
	return s, nil
}

func (s *Stream) subscribe(ctx context.Context, b *bootstrapv3.Bootstrap) error {
	ads, err := discoveryv3.NewAggregatedDiscoveryServiceClient(s.conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return err
	}
	s.ads = ads
	// If sending fails, the server has ended the stream: Receive returns the reason.
	_ = ads.Send(&discoveryv3.DeltaDiscoveryRequest{Node: b.GetNode(), TypeUrl: clusterType})
	_ = ads.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType})
	return nil
}

// Close ends the stream. It may be repeated.
func (s *Stream) Close() error {
	s.cancel()
	return s.conn.Close()
}

// Receive receives one answer and acknowledges it. The error is the server's gRPC status.
func (s *Stream) Receive() error {
	answer, err := s.ads.Recv()
	if err != nil {
		return err
	}
	switch answer.GetTypeUrl() {
	case clusterType:
		if s.Clusters == nil {
			s.Clusters = map[string]*clusterv3.Cluster{}
		}
		err = update(s.Clusters, answer, func() *clusterv3.Cluster { return &clusterv3.Cluster{} })
	case listenerType:
		if s.Listeners == nil {
			s.Listeners = map[string]*listenerv3.Listener{}
		}
		err = update(s.Listeners, answer, func() *listenerv3.Listener { return &listenerv3.Listener{} })
	default:
		err = fmt.Errorf("received %s, which nobody asked for", answer.GetTypeUrl())
	}
	if err != nil {
		return err
	}
	// as in subscribe
	_ = s.ads.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: answer.GetTypeUrl(), ResponseNonce: answer.GetNonce()})
	return nil
}

// Ready receives until clusters and listeners have come.
func (s *Stream) Ready() error {
	for s.Clusters == nil || s.Listeners == nil {
		if err := s.Receive(); err != nil {
			return err
		}
	}
	return nil
}
