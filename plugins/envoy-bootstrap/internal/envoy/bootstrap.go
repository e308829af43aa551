// Package envoy makes a proxy's bootstrap. It is a function of its input (and of the environment, for metrics URLs
// that name a variable), without I/O.
//
// Invariants:
//   - the result equals the output of `consul connect envoy -bootstrap` for the same proxy; the parity test lists every
//     difference with its reason;
//   - the message consists of go-control-plane's types, and everything in it, including google.protobuf.Any, is
//     validated;
//   - the same input gives the same bytes;
//   - no token is in an error.
package envoy

import (
	"context"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filelogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	streamlogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
)

// Proxy is the input for a bootstrap.
type Proxy struct {
	// ID is the proxy's service id in Consul. It becomes Envoy's node id, with which Consul finds the proxy's
	// configuration.
	ID string
	// Service is the name of the proxy's service: a sidecar's destination, or a gateway's own name.
	Service    string
	Datacenter string
	// Namespace and Partition; empty: default.
	Namespace, Partition string
	// Config is the opaque configuration of the registration, decoded from JSON. Keys that do not concern the
	// bootstrap are ignored.
	Config map[string]any
	// AccessLogs are the settings in Consul's proxy-defaults; nil: none.
	AccessLogs *AccessLogs
	// Admin is the address of the admin API, and Ready the address of the readiness endpoint /ready, which needs the admin
	// API; the zero Endpoint: none.
	Admin, Ready Endpoint
	// Server is Consul's xDS server.
	Server Server
	// Token is sent with every xDS stream; empty: anonymous streams. TokenFile is its file, in Dir.
	Token, TokenFile string
	// Dir is where the proxy finds the files beside the bootstrap; empty: the bootstrap contains the token and the CA. So
	// does one of an operator's template.
	Dir string
}

// Endpoint is an IP address and a TCP port, or the path of a unix socket that only the proxy's user reaches.
type Endpoint struct {
	Address string
	Port    uint32
	Socket  string
}

// Server is an xDS server. Socket, the path of a unix socket, has priority over Endpoint.
type Server struct {
	Endpoint Endpoint
	Socket   string
	TLS      bool
	// CA has the PEM certificates that verify the server's. If it is empty, Envoy does not verify it.
	CA string
}

// AccessLogs are the access log settings of Consul's proxy-defaults.
type AccessLogs struct {
	Enabled bool
	// Type is stdout, stderr or file; empty: stdout.
	Type string
	// Path of the file, for the type file.
	Path string
	// JSONFormat has priority over TextFormat; both empty: Consul's JSON.
	JSONFormat, TextFormat string
}

// Bootstrap returns the bootstrap of p as indented JSON with a final newline, and the files that it names, by their
// names in p.Dir. InvalidArgument names the key of p.Config, or the field, that is wrong.
func Bootstrap(ctx context.Context, p Proxy) (bootstrap []byte, files map[string][]byte, err error) {
	text, err := settings(p.Config).text(keyTemplate)
	if err != nil {
		return nil, nil, err
	}
	if text != "" {
		p.Dir = ""
	}
	b, err := build(p)
	if err != nil {
		return nil, nil, err
	}
	if err := validate(b); err != nil {
		return nil, nil, err
	}
	switch {
	case text == "":
		if files, err = p.files(); err == nil {
			bootstrap, err = encode(b, "  ")
		}
	case p.Admin.Port == 0 && strings.Contains(text, "AdminBind"):
		err = invalid(keyTemplate, `it binds the admin API to a port, which needs connect { admin = "tcp" }`)
	default:
		bootstrap, err = fromTemplate(ctx, p, text, b)
	}
	return bootstrap, files, err
}

// build returns the bootstrap without the operator's template.
func build(p Proxy) (*bootstrapv3.Bootstrap, error) {
	var admin *bootstrapv3.Admin
	if p.Admin != (Endpoint{}) {
		var err error
		if admin, err = adminOf(p); err != nil {
			return nil, err
		}
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
		DynamicResources: dynamicResources(p),
	}
	if name, err := settings(p.Config).text(keyNodeName); err != nil {
		return nil, err
	} else if name != "" {
		b.Node.Metadata.Fields[nodeNameField] = structpb.NewStringValue(name)
	}
	agent, err := agentCluster(p)
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

// nodeNameField tells an xDS server on which node of the catalog the proxy is registered, where that is not its own.
const nodeNameField = "node_name"

func orDefault(name string) string {
	if name == "" {
		return "default"
	}
	return name
}

// layeredRuntime allows the regular expressions of Consul's routes and intentions to be larger than Envoy's
// default.
func layeredRuntime() *bootstrapv3.LayeredRuntime {
	return &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{{
		Name: "base",
		LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: &structpb.Struct{Fields: map[string]*structpb.Value{
			"re2.max_program_size.error_level": structpb.NewNumberValue(1 << 20),
		}}},
	}}}
}

// tokenHeader is the metadata that carries the ACL token to Consul's xDS server.
const tokenHeader = "x-consul-token"

// dynamicResources come over one delta stream from Consul. Envoy waits for them without a time limit.
func dynamicResources(p Proxy) *bootstrapv3.Bootstrap_DynamicResources {
	ads := func() *corev3.ConfigSource {
		return &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
			InitialFetchTimeout:   durationpb.New(0),
			ResourceApiVersion:    corev3.ApiVersion_V3,
		}
	}
	stream := &corev3.GrpcService_EnvoyGrpc{ClusterName: agentClusterName}
	service := &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: stream}}
	if p.readsToken() {
		stream.RetryPolicy = streamRetry()
	} else {
		service.InitialMetadata = []*corev3.HeaderValue{{Key: tokenHeader, Value: p.Token}}
	}
	return &bootstrapv3.Bootstrap_DynamicResources{
		LdsConfig: ads(),
		CdsConfig: ads(),
		AdsConfig: &corev3.ApiConfigSource{
			ApiType:             corev3.ApiConfigSource_DELTA_GRPC,
			TransportApiVersion: corev3.ApiVersion_V3,
			GrpcServices:        []*corev3.GrpcService{service},
		},
	}
}

// validate checks m, and every message that is packed into it, by the rules of Envoy's API. InvalidArgument names
// the fields, but not their values.
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

// noLog is the target of the admin API's access log if none is configured.
const noLog = "/dev/null"

func adminOf(p Proxy) (*bootstrapv3.Admin, error) {
	path, err := adminLogPath(p)
	if err != nil {
		return nil, err
	}
	log, err := adminLog(p.AccessLogs, path)
	if err != nil {
		return nil, err
	}
	return &bootstrapv3.Admin{AccessLog: []*accesslogv3.AccessLog{log}, Address: socketAddress(p.Admin)}, nil
}

// adminLogPath is the file of the admin API's access log where the proxy-defaults have none.
func adminLogPath(p Proxy) (string, error) {
	path, err := settings(p.Config).text(keyAdminLog)
	if path == "" {
		path = noLog
	}
	return path, err
}

// adminLog returns the access log of the admin API. It follows the proxy-defaults, as the listeners that come from
// Consul do, under the name that Consul gives such a log; otherwise it is at the path.
func adminLog(logs *AccessLogs, path string) (*accesslogv3.AccessLog, error) {
	if logs == nil || !logs.Enabled {
		return accessLog("envoy.access_loggers.file", &filelogv3.FileAccessLog{Path: path})
	}
	format, err := logFormat(logs)
	if err != nil {
		return nil, err
	}
	const name = "Consul Listener Filter Log"
	switch logs.Type {
	case "", "stdout":
		return accessLog(name,
			&streamlogv3.StdoutAccessLog{AccessLogFormat: &streamlogv3.StdoutAccessLog_LogFormat{LogFormat: format}})
	case "stderr":
		return accessLog(name,
			&streamlogv3.StderrAccessLog{AccessLogFormat: &streamlogv3.StderrAccessLog_LogFormat{LogFormat: format}})
	case "file":
		return accessLog(name, &filelogv3.FileAccessLog{
			Path:            logs.Path,
			AccessLogFormat: &filelogv3.FileAccessLog_LogFormat{LogFormat: format},
		})
	}
	return nil, status.Errorf(codes.InvalidArgument,
		"access logs of the type %q: Consul's proxy-defaults have stdout, stderr and file", logs.Type)
}

func accessLog(name string, conf proto.Message) (*accesslogv3.AccessLog, error) {
	packed, err := anypb.New(conf)
	if err != nil {
		return nil, err
	}
	return &accesslogv3.AccessLog{Name: name, ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: packed}}, nil
}

func logFormat(logs *AccessLogs) (*corev3.SubstitutionFormatString, error) {
	if logs.JSONFormat == "" && logs.TextFormat != "" {
		text := strings.TrimSuffix(logs.TextFormat, "\n") + "\n"
		return &corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_TextFormatSource{
			TextFormatSource: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: text}},
		}}, nil
	}
	fields := defaultLogFields()
	if logs.JSONFormat != "" {
		fields = &structpb.Struct{}
		if err := protojson.Unmarshal([]byte(logs.JSONFormat), fields); err != nil {
			return nil, status.Errorf(codes.InvalidArgument,
				"the JSON format of access logs in Consul's proxy-defaults is not a JSON object: %v", err)
		}
	}
	return &corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: fields}}, nil
}

// defaultLogFields are the fields that Consul logs if no format is configured.
func defaultLogFields() *structpb.Struct {
	fields := map[string]*structpb.Value{}
	for name, operator := range map[string]string{
		"authority":                         "REQ(:AUTHORITY)",
		"bytes_received":                    "BYTES_RECEIVED",
		"bytes_sent":                        "BYTES_SENT",
		"connection_termination_details":    "CONNECTION_TERMINATION_DETAILS",
		"downstream_local_address":          "DOWNSTREAM_LOCAL_ADDRESS",
		"downstream_remote_address":         "DOWNSTREAM_REMOTE_ADDRESS",
		"duration":                          "DURATION",
		"method":                            "REQ(:METHOD)",
		"path":                              "REQ(X-ENVOY-ORIGINAL-PATH?:PATH)",
		"protocol":                          "PROTOCOL",
		"request_id":                        "REQ(X-REQUEST-ID)",
		"requested_server_name":             "REQUESTED_SERVER_NAME",
		"response_code":                     "RESPONSE_CODE",
		"response_code_details":             "RESPONSE_CODE_DETAILS",
		"response_flags":                    "RESPONSE_FLAGS",
		"route_name":                        "ROUTE_NAME",
		"start_time":                        "START_TIME",
		"upstream_cluster":                  "UPSTREAM_CLUSTER",
		"upstream_host":                     "UPSTREAM_HOST",
		"upstream_local_address":            "UPSTREAM_LOCAL_ADDRESS",
		"upstream_service_time":             "RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)",
		"upstream_transport_failure_reason": "UPSTREAM_TRANSPORT_FAILURE_REASON",
		"user_agent":                        "REQ(USER-AGENT)",
		"x_forwarded_for":                   "REQ(X-FORWARDED-FOR)",
	} {
		fields[name] = structpb.NewStringValue("%" + operator + "%")
	}
	return &structpb.Struct{Fields: fields}
}
