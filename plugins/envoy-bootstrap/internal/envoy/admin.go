package envoy

import (
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
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// noLog is where the admin API's access log goes when none is wanted.
const noLog = "/dev/null"

func adminOf(p Proxy) (*bootstrapv3.Admin, error) {
	log, err := adminLog(p.AccessLogs)
	if err != nil {
		return nil, err
	}
	return &bootstrapv3.Admin{AccessLog: []*accesslogv3.AccessLog{log}, Address: socketAddress(p.Admin)}, nil
}

// adminLog is the access log of the admin API. It follows the proxy-defaults, as the
// listeners that come from Consul do, under the name that Consul gives such a log.
func adminLog(logs *AccessLogs) (*accesslogv3.AccessLog, error) {
	if logs == nil || !logs.Enabled {
		return accessLog("envoy.access_loggers.file", &filelogv3.FileAccessLog{Path: noLog})
	}
	format, err := logFormat(logs)
	if err != nil {
		return nil, err
	}
	const name = "Consul Listener Filter Log"
	switch logs.Type {
	case "", "stdout":
		return accessLog(name, &streamlogv3.StdoutAccessLog{AccessLogFormat: &streamlogv3.StdoutAccessLog_LogFormat{LogFormat: format}})
	case "stderr":
		return accessLog(name, &streamlogv3.StderrAccessLog{AccessLogFormat: &streamlogv3.StderrAccessLog_LogFormat{LogFormat: format}})
	case "file":
		return accessLog(name, &filelogv3.FileAccessLog{Path: logs.Path, AccessLogFormat: &filelogv3.FileAccessLog_LogFormat{LogFormat: format}})
	}
	return nil, status.Errorf(codes.InvalidArgument, "access logs of the type %q: Consul's proxy-defaults have stdout, stderr and file", logs.Type)
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
			return nil, status.Errorf(codes.InvalidArgument, "the JSON format of access logs in Consul's proxy-defaults is no JSON object: %v", err)
		}
	}
	return &corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: fields}}, nil
}

// defaultLogFields are what Consul logs of a request when no format is given.
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
