package envoy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
	real "github.com/pannier/pannier/test/lib/envoy"
)

const token = "7f2c1c5e-9a57-4d1e-b7b1-0f1e2d3c4b5a"

// proxy returns a sidecar with a configuration.
func proxy(config map[string]any) Proxy {
	return Proxy{
		ID: "web-sidecar-proxy", Service: "web", Datacenter: "dc1", Config: config, Token: token,
		Admin:  Endpoint{Address: "127.0.0.1", Port: 19001},
		Server: Server{Endpoint: Endpoint{Address: "127.0.0.1", Port: 8502}},
	}
}

func TestMain(m *testing.M) {
	RenderChild()
	m.Run()
}

// TestWrongValues checks that errors name the key with the wrong value, and contain no secret.
func TestWrongValues(t *testing.T) {
	const secret = "s3same"
	t.Setenv("PANNIER_TEST_SECRET", "tcp://user:"+secret+"@host")
	t.Setenv("PANNIER_TEST_NO_URL", "://"+secret)
	for name, tc := range map[string]struct {
		key   string
		value any
		want  string
	}{
		"a map for text":             {keyStatsdURL, map[string]any{"a": 1}, "want a string"},
		"a map in a list":            {keyStatsTags, []any{"a", map[string]any{}}, "want a string"},
		"a list for text":            {keyStatsFlush, []any{"5s"}, "want a string"},
		"statsd by TCP":              {keyStatsdURL, "tcp://127.0.0.1:8125", "neither udp://IP:PORT nor unix:///PATH"},
		"statsd without port":        {keyStatsdURL, "udp://127.0.0.1", "no IP address and port"},
		"statsd without host":        {keyStatsdURL, "udp://:8125", "no IP address and port"},
		"statsd without path":        {keyStatsdURL, "unix://", "neither udp://IP:PORT nor unix:///PATH"},
		"statsd of no variable":      {keyStatsdURL, "$PANNIER_TEST_NONE", "names a variable"},
		"statsd of another variable": {keyStatsdURL, "udp://${HOME}:8125", "is not a URL"},
		"statsd of a secret":         {keyDogstatsdURL, "$PANNIER_TEST_SECRET", "$PANNIER_TEST_SECRET"},
		"statsd of no URL":           {keyDogstatsdURL, "$PANNIER_TEST_NO_URL", "$PANNIER_TEST_NO_URL"},
		"flush of no duration":       {keyStatsFlush, "often", `got "often"`},
		"flush in minutes":           {keyStatsFlush, "1m", `got "1m"`},
		"flush with a quote":         {keyStatsFlush, `5s", "x": "`, "want seconds"},
		"prometheus without port":    {keyPrometheusBind, "0.0.0.0", "want ADDRESS:PORT"},
		"prometheus without address": {keyPrometheusBind, ":9102", "want ADDRESS:PORT"},
		"prometheus with a name":     {keyPrometheusBind, "0.0.0.0:http", "port from 1 to 65535"},
		"stats on port 0":            {keyStatsBind, "0.0.0.0:0", "port from 1 to 65535"},
		"no JSON":                    {keyStaticClusters, "{", "want JSON objects separated by commas"},
		"a list of clusters":         {keyStaticClusters, `[{"name": "a"}]`, "envoy.config.cluster.v3.Cluster"},
		"unknown field":              {keyStaticClusters, `{"name": "a", "colour": "b"}`, `"colour"`},
		"cluster without name":       {keyStaticClusters, `{"type": "STATIC"}`, "Name"},
		"second cluster":             {keyStaticClusters, `{"name": "a"}, {"name": 1}`, "want the JSON"},
		"packed against a rule": {keyStaticListeners, `{"name": "a", "filter_chains": [{"filters": [{"name": "n", "typed_config": {
			"@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy", "cluster": "c"}}]}]}`, "StatPrefix"},
		"stats config":          {keyStatsConfig, `{"stats_tags": [{"regex": 5}]}`, "want the JSON"},
		"more than one object":  {keyStatsConfig, `{} {}`, "more behind"},
		"tracing":               {keyTracing, `{"http": {}}`, "Name"},
		"tracing of no JSON":    {keyTracing, `zipkin`, "want the JSON"},
		"Any without a type":    {keyTracing, `{"http": {"name": "a", "typed_config": {"b": 1}}}`, "@type"},
		"template that is none": {keyTemplate, "{{ if }}", "missing value for if"},
		"template of no field":  {keyTemplate, "{{ .Secret }}", "Secret"},
		"template of no JSON":   {keyTemplate, "{{ .ProxyID }}", "want the JSON"},
		"template, token naked": {keyTemplate, `{"node": {"id": {{ .Token }}}}`, "want the JSON"},
		"template, odd token": {
			keyTemplate, `{"dynamic_resources": {"ads_config": {"api_type": "{{ .Token }}"}}}`,
			"apiType",
		},
		"template, rule broken": {keyTemplate, `{"static_resources": {"clusters": {"name": ""}}}`, "Name"},
		"template for one token": {
			keyTemplate,
			`{"node": {"id": "{{ if eq .Token "` + token +
				`" }}" {{ .Token }}{{ else }}"{{ end }}}}`, "but not with the proxy's",
		},
	} {
		t.Run(name, func(t *testing.T) {
			out, _, err := Bootstrap(t.Context(), proxy(map[string]any{tc.key: tc.value}))
			if status.Code(err) != codes.InvalidArgument || out != nil {
				t.Fatalf("got %v and\n%s", err, out)
			}
			for _, want := range []string{tc.key + ":", tc.want} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q in it", err, want)
				}
			}
			// A part of a token is a secret too.
			for _, never := range []string{secret, token[:8]} {
				if strings.Contains(err.Error(), never) {
					t.Errorf("%q is in %v", never, err)
				}
			}
		})
	}
}

// TestUnknownType checks that an extension that is not linked in is copied unchanged to the bootstrap and to a
// template's arguments.
func TestUnknownType(t *testing.T) {
	const tracer = `{"@type":"type.googleapis.com/acme.Tracer","deep":{"big":9007199254740993,"<list>":[1,{"a":null}]},"value":"<&>"}`
	tracing := `{"http": {"name": "acme", "typedConfig": ` + tracer + `}}`
	for name, config := range map[string]map[string]any{
		"alone":         {keyTracing: tracing},
		"in a template": {keyTracing: tracing, keyTemplate: `{"node": {"id": "x"}, "tracing": {{ .TracingConfigJSON }}}`},
	} {
		out, _, err := Bootstrap(t.Context(), proxy(config))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var got struct {
			Tracing struct {
				HTTP struct {
					Config json.RawMessage `json:"typed_config"`
				} `json:"http"`
			} `json:"tracing"`
		}
		check.NoError(t, json.Unmarshal(out, &got))
		var compact bytes.Buffer
		check.NoError(t, json.Compact(&compact, got.Tracing.HTTP.Config))
		// The keys of the copy are sorted.
		want := `{"@type":"type.googleapis.com/acme.Tracer","deep":{"<list>":[1,{"a":null}],"big":9007199254740993},"value":"<&>"}`
		if compact.String() != want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, &compact, want)
		}
	}
}

// TestOneForAList checks that a single value is accepted instead of a list, as Envoy's parser does, also in
// packed messages and maps.
func TestOneForAList(t *testing.T) {
	out, _, err := Bootstrap(t.Context(), proxy(map[string]any{keyStaticListeners: `{
		"name": "a", "filter_chains": {"filters": {"name": "n", "typed_config": {
			"@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
			"stat_prefix": "s", "route_config": {"virtual_hosts": {"name": "v", "domains": "*", "typed_per_filter_config": {"f": {
				"@type": "type.googleapis.com/envoy.extensions.filters.http.cors.v3.CorsPolicy", "allow_origin_string_match": {"exact": "o"}}}}}}}}}`}))
	check.NoError(t, err)
	var compact bytes.Buffer
	check.NoError(t, json.Compact(&compact, out))
	for _, want := range []string{
		`"filter_chains":[{"filters":[{`, `"domains":["*"]`, `"virtual_hosts":[{`,
		`"allow_origin_string_match":[{"exact":"o"}]`,
	} {
		if !strings.Contains(compact.String(), want) {
			t.Errorf("no %s in\n%s", want, out)
		}
	}
}

// TestWrongInput checks the errors for input that does not come from a configuration.
func TestWrongInput(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Proxy)
		want   string
	}{
		"type of access logs": {func(p *Proxy) { p.AccessLogs = &AccessLogs{Enabled: true, Type: "syslog"} }, `"syslog"`},
		"format of access logs": {
			func(p *Proxy) { p.AccessLogs = &AccessLogs{Enabled: true, JSONFormat: "{"} },
			"JSON format",
		},
		"file of access logs": {
			func(p *Proxy) { p.AccessLogs = &AccessLogs{Enabled: true, Type: "file"} },
			"FileAccessLog.Path",
		},
		"port of the server":   {func(p *Proxy) { p.Server.Endpoint.Port = 70000 }, "PortValue"},
		"a token of two lines": {func(p *Proxy) { p.Token = token + "\n" + token }, "HeaderValue"},
	} {
		p := proxy(nil)
		tc.change(&p)
		_, _, err := Bootstrap(t.Context(), p)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), tc.want) ||
			strings.Contains(err.Error(), token) {
			t.Errorf("%s: got %v, want %q in it", name, err, tc.want)
		}
	}
}

// TestSecretsInFiles checks that a bootstrap with a directory contains neither token nor CA, that Envoy takes it, and
// that another token or CA changes no byte of it. An operator's template contains them.
func TestSecretsInFiles(t *testing.T) {
	ca, _, _ := consul.Certificates(t, t.TempDir())
	text, err := os.ReadFile(ca)
	check.NoError(t, err)
	p := proxy(nil)
	p.Dir = t.TempDir()
	p.TokenFile = filepath.Join(p.Dir, "si_token")
	p.Server.TLS, p.Server.CA = true, string(text)
	out, files, err := Bootstrap(t.Context(), p)
	check.NoError(t, err)
	if len(files) != 2 || strings.Contains(string(out), token) || strings.Contains(string(out), "CERTIFICATE") {
		t.Errorf("got %d files and\n%s", len(files), out)
	}
	check.NoError(t, os.WriteFile(p.TokenFile, []byte(token), 0o600))
	for name, text := range files {
		if strings.Contains(string(text), token) {
			t.Errorf("%s contains the token", name)
		}
		check.NoError(t, os.WriteFile(filepath.Join(p.Dir, name), text, 0o600))
	}
	other := p
	other.Token, other.Server.CA = "another", "another"
	again, otherFiles, err := Bootstrap(t.Context(), other)
	check.NoError(t, err)
	if !bytes.Equal(again, out) {
		t.Errorf("with other secrets it is\n%s\nand was\n%s", again, out)
	}
	for name, text := range files {
		if same := bytes.Equal(text, otherFiles[name]); same != (name == secretFile(tokenSecret)) {
			t.Errorf("%s stays the same: %t", name, same)
		}
	}
	p.Config = map[string]any{keyTemplate: `{"node": {"id": "{{ .Token }}", "cluster": "{{ .AgentCAPEM }}"}}`}
	filled, files, err := Bootstrap(t.Context(), p)
	check.NoError(t, err)
	if len(files) > 0 || !strings.Contains(string(filled), token) || !strings.Contains(string(filled), "CERTIFICATE") {
		t.Errorf("got %d files and\n%s", len(files), filled)
	}
	if warnings, err := real.Validate(t, real.Program(t, "secrets in files"), out); err != nil || warnings != "" {
		t.Errorf("Envoy says %v\n%s", err, warnings)
	}
}

// BenchmarkBootstrap measures the cost of a bootstrap without the requests to Consul.
func BenchmarkBootstrap(b *testing.B) {
	for name, config := range map[string]map[string]any{
		"plain": {keyPrometheusBind: "0.0.0.0:9102"}, "with tags": {keyStatsTags: "a=b"},
	} {
		b.Run(name, func(b *testing.B) {
			p := proxy(config)
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := Bootstrap(b.Context(), p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestNoAdmin makes a bootstrap without an admin API: what needs one is refused.
func TestNoAdmin(t *testing.T) {
	p := proxy(nil)
	p.Admin = Endpoint{}
	out, _, err := Bootstrap(t.Context(), p)
	check.NoError(t, err)
	var got map[string]any
	check.NoError(t, json.Unmarshal(out, &got))
	if _, there := got["admin"]; there || strings.Contains(string(out), selfAdminName) {
		t.Errorf("the bootstrap is %s", out)
	}
	p.Config = map[string]any{keyPrometheusBind: "127.0.0.1:9102"}
	_, _, err = Bootstrap(t.Context(), p)
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "admin API") {
		t.Errorf("got %v", err)
	}
	p.Admin, p.Config = Endpoint{Socket: "/run/a.sock"}, map[string]any{keyTemplate: "{{ .AdminBindPort }}"}
	_, _, err = Bootstrap(t.Context(), p)
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), `admin = "tcp"`) {
		t.Errorf("got %v", err)
	}
}

// TestPrometheus checks what is wrong with the keys of a listener for Prometheus, and that one with a server of its own
// needs no admin API.
func TestPrometheus(t *testing.T) {
	for name, tc := range map[string]struct {
		key   string
		value any
		want  string
	}{
		"path":                 {keyPrometheusPath, "metrics", "starts with /"},
		"port of the backend":  {keyPrometheusBackend, "http", "port from 1 to 65535"},
		"backend of no port":   {keyPrometheusBackend, 0, "want a string"},
		"a certificate alone":  {keyPrometheusCert, "/c.pem", keyPrometheusCAFile},
		"an authority alone":   {keyPrometheusCAPath, "/cas", keyPrometheusKey},
		"an authority by list": {keyPrometheusCAFile, []any{"/ca.pem"}, "want a string"},
	} {
		_, _, err := Bootstrap(t.Context(), proxy(map[string]any{keyPrometheusBind: "127.0.0.1:9102", tc.key: tc.value}))
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
		if _, _, err := Bootstrap(t.Context(), proxy(map[string]any{tc.key: tc.value})); err != nil {
			t.Errorf("%s without a listener: %v", name, err)
		}
	}
	p := proxy(map[string]any{keyPrometheusBind: "127.0.0.1:9102", keyPrometheusBackend: 20100.0})
	p.Admin = Endpoint{}
	out, _, err := Bootstrap(t.Context(), p)
	check.NoError(t, err)
	var got struct {
		Static struct {
			Clusters []struct{ Name string }
		} `json:"static_resources"`
	}
	check.NoError(t, json.Unmarshal(out, &got))
	if all := got.Static.Clusters; len(all) != 2 || all[1].Name != prometheusBackendName {
		t.Errorf("the clusters are %v", all)
	}
}

// TestFieldsOfLater checks that a template may have fields that only a later Envoy knows, and that the others are
// checked.
func TestFieldsOfLater(t *testing.T) {
	out, _, err := Bootstrap(t.Context(), proxy(map[string]any{keyTemplate: `{"node": {"id": "{{ .ProxyID }}", "later": 1}, "even": ["later"]}`}))
	check.NoError(t, err)
	if want := "{\n  \"node\": {\n    \"id\": \"web-sidecar-proxy\",\n    \"later\": 1\n  },\n  \"even\": [\n    \"later\"\n  ]\n}\n"; string(out) != want {
		t.Errorf("got %s", out)
	}
	const router = `"typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"`
	const around = `{"later": 1, "static_resources": {"listeners": {"name": "l", "listener_filters": {"name": "f", %s}}}}`
	for _, inside := range []string{router + "}", router + `, "later": {"a": [1]}}`} {
		text := fmt.Sprintf(around, inside)
		if _, _, err := Bootstrap(t.Context(), proxy(map[string]any{keyTemplate: text})); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{
		fmt.Sprintf(around, router+`, "dynamic_stats": "x"}`),
		`{"later": 1, "node": {"id": 5}}`, `{"later": 1, "static_resources": {"clusters": {"name": ""}}}`,
		`{"later": 1, "admin": {"address": {"socket_address": {"address": "a", "port_value": 70000}}}}`,
	} {
		out, _, err := Bootstrap(t.Context(), proxy(map[string]any{keyTemplate: text}))
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %s, %v", text, out, err)
		}
	}
}

// TestTemplateWithoutEnd checks that a template that takes much time or memory, or gives much output, is ended, and
// that it is a mistake of the proxy's configuration, which no retry mends.
func TestTemplateWithoutEnd(t *testing.T) {
	for name, text := range map[string]string{
		"loop":    "{{range 1000000000}}{{end}}",
		"output":  "{{range 20000000}}abcdefgh{{end}}",
		"doubled": `{{len ("\\\\"` + strings.Repeat(" | js", 28) + ")}}",
		"printed": `{{len (printf "` + strings.Repeat("%1000000d", 500) + `"` + strings.Repeat(" 1", 500) + `)}}`,
	} {
		_, _, err := Bootstrap(t.Context(), proxy(map[string]any{keyTemplate: text}))
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), keyTemplate+": it takes more than") {
			t.Errorf("%s: error %v; want one that names the key and the bounds", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := Bootstrap(ctx, proxy(map[string]any{keyTemplate: "{}"})); status.Code(err) != codes.Canceled {
		t.Errorf("a cancelled call: %v", err)
	}
}
