package envoy

import (
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
)

// Proxy is what a bootstrap is made of.
type Proxy struct {
	// ID is the proxy's service id in Consul. It becomes Envoy's node id, by which
	// Consul finds the proxy's configuration.
	ID string
	// Service is the name of the service that the proxy stands for: a sidecar's
	// destination, or a gateway's own name.
	Service    string
	Datacenter string
	// Namespace and Partition; empty: default.
	Namespace, Partition string
	// Config is the opaque configuration of the registration, as JSON gives it. Keys
	// other than the bootstrap's are ignored.
	Config map[string]any
	// AccessLogs is what Consul's proxy-defaults say about them; nil: nothing.
	AccessLogs *AccessLogs
	// Admin is where the admin API listens.
	Admin Endpoint
	// Ready is where the proxy answers /ready; port 0: nowhere.
	Ready Endpoint
	// Server is Consul's xDS server.
	Server Server
	// Token goes with every xDS stream; empty: an anonymous stream.
	Token string
}

// Endpoint is an IP address and a TCP port.
type Endpoint struct {
	Address string
	Port    uint32
}

// Server is an xDS server. Socket, the path of a unix socket, is taken before Endpoint.
type Server struct {
	Endpoint Endpoint
	Socket   string
	TLS      bool
	// CA are the PEM certificates that the server's is checked against. Without one
	// Envoy checks nothing.
	CA string
}

// AccessLogs is the part of Consul's proxy-defaults that is about access logs.
type AccessLogs struct {
	Enabled bool
	// Type is stdout, stderr or file; empty: stdout.
	Type string
	// Path of the file, for the type file.
	Path string
	// JSONFormat is taken before TextFormat; both empty: Consul's JSON.
	JSONFormat, TextFormat string
}

// Bootstrap makes the bootstrap of p as JSON, indented, with a newline at the end.
// InvalidArgument names the key of p.Config, or the field, that is wrong.
func Bootstrap(p Proxy) ([]byte, error) {
	b, err := build(p)
	if err != nil {
		return nil, err
	}
	if err := validate(b); err != nil {
		return nil, err
	}
	if text, err := settings(p.Config).text(keyTemplate); err != nil {
		return nil, err
	} else if text != "" {
		if b, err = fromTemplate(p, text, b); err != nil {
			return nil, err
		}
	}
	return encode(b, "  ")
}

// build is the bootstrap without the operator's template.
func build(p Proxy) (*bootstrapv3.Bootstrap, error) {
	admin, err := adminOf(p)
	if err != nil {
		return nil, err
	}
	b := &bootstrapv3.Bootstrap{
		Admin: admin,
		Node: &corev3.Node{
			Id:      p.ID,
			Cluster: p.Service,
			Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{
				"namespace": structpb.NewStringValue(orDefault(p.Namespace)),
				"partition": structpb.NewStringValue(orDefault(p.Partition)),
			}},
		},
		LayeredRuntime:   layeredRuntime(),
		StaticResources:  &bootstrapv3.Bootstrap_StaticResources{},
		DynamicResources: dynamicResources(p.Token),
	}
	agent, err := agentCluster(p.Server)
	if err != nil {
		return nil, err
	}
	b.StaticResources.Clusters = append(b.StaticResources.Clusters, agent)
	// The operator's own resources come before those that the keys below add.
	for _, add := range []func(*bootstrapv3.Bootstrap, Proxy) error{
		addStatic, addTracing, addEndpoints, addStatsConfig, addStatsSinks, addStatsFlush, addCollector,
	} {
		if err := add(b, p); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func orDefault(name string) string {
	if name == "" {
		return "default"
	}
	return name
}

// layeredRuntime lets the regular expressions of Consul's routes and intentions be
// larger than Envoy's default allows.
func layeredRuntime() *bootstrapv3.LayeredRuntime {
	return &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{{
		Name: "base",
		LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: &structpb.Struct{Fields: map[string]*structpb.Value{
			"re2.max_program_size.error_level": structpb.NewNumberValue(1 << 20),
		}}},
	}}}
}

// tokenHeader is the metadata in which Consul's xDS server looks for the ACL token.
const tokenHeader = "x-consul-token"

// dynamicResources come over one delta stream from Consul, for which Envoy waits as
// long as it takes.
func dynamicResources(token string) *bootstrapv3.Bootstrap_DynamicResources {
	ads := func() *corev3.ConfigSource {
		return &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
			InitialFetchTimeout:   durationpb.New(0),
			ResourceApiVersion:    corev3.ApiVersion_V3,
		}
	}
	return &bootstrapv3.Bootstrap_DynamicResources{
		LdsConfig: ads(),
		CdsConfig: ads(),
		AdsConfig: &corev3.ApiConfigSource{
			ApiType:             corev3.ApiConfigSource_DELTA_GRPC,
			TransportApiVersion: corev3.ApiVersion_V3,
			GrpcServices: []*corev3.GrpcService{{
				TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: agentClusterName}},
				InitialMetadata: []*corev3.HeaderValue{{Key: tokenHeader, Value: token}},
			}},
		},
	}
}

// validate checks m by the rules of Envoy's API, and every message that is packed into
// it. InvalidArgument names the fields; it has no value of theirs.
func validate(m proto.Message) error {
	if err := validateOne(m); err != nil {
		return err
	}
	return protorange.Range(m.ProtoReflect(), func(at protopath.Values) error {
		if last := at.Index(-1); last.Step.Kind() == protopath.AnyExpandStep {
			return validateOne(last.Value.Message().Interface())
		}
		return nil
	})
}

func validateOne(m proto.Message) error {
	v, ok := m.(interface{ ValidateAll() error })
	if !ok {
		return nil
	}
	if err := v.ValidateAll(); err != nil {
		return status.Errorf(codes.InvalidArgument, "Envoy would refuse it: %v", err)
	}
	return nil
}
