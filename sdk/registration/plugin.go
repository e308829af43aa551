package registration

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/convert"
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

// Parts of messages.
type (
	heartbeat struct{ Beats []Beat }
	synced    struct {
		Index   uint64
		Changes []Change
	}
)

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
		convert.From[Owner](req.GetOwner()), req.GetId())
}

func (s *server) Sync(ctx context.Context, req *registrationv1.SyncRequest) (*registrationv1.SyncResponse, error) {
	sync := convert.From[SyncRequest](req)
	for _, m := range req.GetInstances() {
		i, err := instanceFrom(m)
		if err != nil {
			return nil, err
		}
		sync.Instances = append(sync.Instances, i)
	}
	index, changes, err := s.impl.Sync(ctx, service.ConsulFromProto(req.GetConsul()), sync)
	return convert.To[registrationv1.SyncResponse](synced{index, changes}), err
}

func (s *server) Heartbeat(ctx context.Context,
	req *registrationv1.HeartbeatRequest,
) (*registrationv1.HeartbeatResponse, error) {
	beats := convert.From[heartbeat](req).Beats
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
		&registrationv1.DeregisterRequest{Consul: consul.ToProto(), Owner: convert.To[registrationv1.Owner](owner), Id: id})
	return err
}

func (c *client) Sync(ctx context.Context, consul service.Consul, req SyncRequest) (uint64, []Change, error) {
	m := convert.To[registrationv1.SyncRequest](req)
	m.Consul = consul.ToProto()
	for _, i := range req.Instances {
		instance, err := instanceTo(i)
		if err != nil {
			return 0, nil, err
		}
		m.Instances = append(m.Instances, instance)
	}
	res, err := c.rpc.Sync(ctx, m)
	return res.GetIndex(), convert.From[synced](res).Changes, err
}

func (c *client) Heartbeat(ctx context.Context, consul service.Consul, beats []Beat) error {
	m := convert.To[registrationv1.HeartbeatRequest](heartbeat{beats})
	m.Consul = consul.ToProto()
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
	m := convert.To[registrationv1.Instance](i)
	m.Service = s
	return m, nil
}

func instanceFrom(m *registrationv1.Instance) (Instance, error) {
	s, err := service.FromProto(m.GetService())
	if err != nil {
		return Instance{}, status.Errorf(codes.InvalidArgument, "service %q: %v", m.GetService().GetName(), err)
	}
	i := convert.From[Instance](m)
	i.Service = s
	return i, nil
}
