package registration

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk"
	registrationv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/registration/v1"
	"github.com/pannier/pannier/sdk/service"
)

// Plugin serves an implementation: sdk.Main(info, registration.Plugin(impl)).
func Plugin(impl Registration) sdk.Plugin {
	return sdk.Plugin{
		Kind: Kind,
		Impl: impl,
		Register: func(r grpc.ServiceRegistrar) {
			registrationv1.RegisterRegistrationServiceServer(r, &server{impl: impl})
		},
	}
}

// server adapts an implementation to the protocol.
type server struct {
	registrationv1.UnimplementedRegistrationServiceServer
	impl Registration
}

func (s *server) Register(ctx context.Context, req *registrationv1.RegisterRequest) (*registrationv1.RegisterResponse,
	error,
) {
	i, err := instanceFrom(req.GetInstance())
	if err != nil {
		return nil, err
	}
	proxyID, err := s.impl.Register(ctx, service.ConsulFromProto(req.GetConsul()), i)
	return &registrationv1.RegisterResponse{ProxyId: proxyID}, err
}

func (s *server) Deregister(ctx context.Context,
	req *registrationv1.DeregisterRequest,
) (*registrationv1.DeregisterResponse, error) {
	return &registrationv1.DeregisterResponse{}, s.impl.Deregister(ctx, service.ConsulFromProto(req.GetConsul()),
		ownerFrom(req.GetOwner()), req.GetId())
}

func (s *server) Sync(ctx context.Context, req *registrationv1.SyncRequest) (*registrationv1.SyncResponse, error) {
	sync := SyncRequest{
		Owner: ownerFrom(req.GetOwner()), Index: req.GetIndex(),
		Wait: time.Duration(req.GetWaitMs()) * time.Millisecond,
	}
	for _, m := range req.GetInstances() {
		i, err := instanceFrom(m)
		if err != nil {
			return nil, err
		}
		sync.Instances = append(sync.Instances, i)
	}
	index, changes, err := s.impl.Sync(ctx, service.ConsulFromProto(req.GetConsul()), sync)
	res := &registrationv1.SyncResponse{Index: index}
	for _, c := range changes {
		res.Changes = append(res.Changes, &registrationv1.Change{
			Id: c.ID, Action: string(c.Action), Reason: c.Reason, ProxyDigest: c.ProxyDigest,
		})
	}
	return res, err
}

func (s *server) Heartbeat(ctx context.Context,
	req *registrationv1.HeartbeatRequest,
) (*registrationv1.HeartbeatResponse, error) {
	var beats []Beat
	for _, b := range req.GetBeats() {
		beats = append(beats, Beat{ID: b.GetId(), Healthy: b.GetHealthy(), Output: b.GetOutput()})
	}
	return &registrationv1.HeartbeatResponse{}, s.impl.Heartbeat(ctx, service.ConsulFromProto(req.GetConsul()), beats)
}

func (s *server) SetIntentions(ctx context.Context,
	req *registrationv1.SetIntentionsRequest,
) (*registrationv1.SetIntentionsResponse, error) {
	impl, ok := sdk.As[Intender](s.impl)
	if !ok {
		return nil, status.Error(codes.Unimplemented, "the plugin has no intentions")
	}
	i, err := instanceFrom(req.GetInstance())
	if err != nil {
		return nil, err
	}
	return &registrationv1.SetIntentionsResponse{},
		impl.SetIntentions(ctx, service.ConsulFromProto(req.GetConsul()), i)
}

// NewClient returns the host's client of a registration plugin. Errors are the plugin's gRPC status errors,
// unchanged.
func NewClient(conn grpc.ClientConnInterface) Registration {
	return &client{rpc: registrationv1.NewRegistrationServiceClient(conn)}
}

type client struct {
	rpc registrationv1.RegistrationServiceClient
}

func (c *client) Register(ctx context.Context, consul service.Consul, i Instance) (string, error) {
	instance, err := instanceTo(i)
	if err != nil {
		return "", err
	}
	res, err := c.rpc.Register(ctx, &registrationv1.RegisterRequest{Consul: consul.ToProto(), Instance: instance})
	return res.GetProxyId(), err
}

func (c *client) Deregister(ctx context.Context, consul service.Consul, owner Owner, id string) error {
	_, err := c.rpc.Deregister(ctx,
		&registrationv1.DeregisterRequest{Consul: consul.ToProto(), Owner: ownerTo(owner), Id: id})
	return err
}

func (c *client) Sync(ctx context.Context, consul service.Consul, req SyncRequest) (uint64, []Change, error) {
	m := &registrationv1.SyncRequest{
		Consul: consul.ToProto(), Owner: ownerTo(req.Owner), Index: req.Index,
		WaitMs: req.Wait.Milliseconds(),
	}
	for _, i := range req.Instances {
		instance, err := instanceTo(i)
		if err != nil {
			return 0, nil, err
		}
		m.Instances = append(m.Instances, instance)
	}
	res, err := c.rpc.Sync(ctx, m)
	var changes []Change
	for _, c := range res.GetChanges() {
		changes = append(changes, Change{
			ID: c.GetId(), Action: Action(c.GetAction()), Reason: c.GetReason(), ProxyDigest: c.GetProxyDigest(),
		})
	}
	return res.GetIndex(), changes, err
}

func (c *client) Heartbeat(ctx context.Context, consul service.Consul, beats []Beat) error {
	m := &registrationv1.HeartbeatRequest{Consul: consul.ToProto()}
	for _, b := range beats {
		m.Beats = append(m.Beats, &registrationv1.Beat{Id: b.ID, Healthy: b.Healthy, Output: b.Output})
	}
	_, err := c.rpc.Heartbeat(ctx, m)
	return err
}

// SetIntentions implements Intender. Unimplemented: the plugin does not.
func (c *client) SetIntentions(ctx context.Context, consul service.Consul, i Instance) error {
	instance, err := instanceTo(i)
	if err != nil {
		return err
	}
	_, err = c.rpc.SetIntentions(ctx,
		&registrationv1.SetIntentionsRequest{Consul: consul.ToProto(), Instance: instance})
	return err
}

func instanceTo(i Instance) (*registrationv1.Instance, error) {
	s, err := i.Service.ToProto()
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "service %q: %v", i.Service.Name, err)
	}
	return &registrationv1.Instance{
		Id: i.ID, Owner: ownerTo(i.Owner), Namespace: i.Namespace, Workload: i.Workload,
		Service: s, ProxyDigest: i.ProxyDigest,
	}, nil
}

func instanceFrom(m *registrationv1.Instance) (Instance, error) {
	s, err := service.FromProto(m.GetService())
	if err != nil {
		return Instance{}, status.Errorf(codes.InvalidArgument, "service %q: %v", m.GetService().GetName(), err)
	}
	return Instance{
		ID: m.GetId(), Owner: ownerFrom(m.GetOwner()), Namespace: m.GetNamespace(), Workload: m.GetWorkload(),
		Service: s, ProxyDigest: m.GetProxyDigest(),
	}, nil
}

func ownerTo(o Owner) *registrationv1.Owner {
	return &registrationv1.Owner{Cluster: o.Cluster, Node: o.Node}
}

func ownerFrom(m *registrationv1.Owner) Owner {
	return Owner{Cluster: m.GetCluster(), Node: m.GetNode()}
}
