package envoy

import (
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
)

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
