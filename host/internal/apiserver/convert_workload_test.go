package apiserver

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/workload"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	servicev1 "github.com/pannier/pannier/sdk/proto/pannier/service/v1"
)

// meshed is a specification with all that a service may bring with it.
func meshed(t *testing.T) *hostv1.WorkloadSpec {
	t.Helper()
	config, err := structpb.NewStruct(map[string]any{"envoy_prometheus_bind_addr": "0.0.0.0:9102", "n": 3.5, "list": []any{"a", true}})
	must(t, err)
	return &hostv1.WorkloadSpec{
		Namespace: "prod", Id: "web", User: "www-data", Canary: true,
		Exec: &hostv1.Exec{Command: "/bin/web", Args: []string{"-v"}, Env: map[string]string{"A": "b"}, User: "nobody"},
		Services: []*servicev1.Service{{
			Name: "web", Port: "http", Tags: []string{"a"}, CanaryTags: []string{"c"}, Meta: map[string]string{"k": "v"}, EnableTagOverride: true,
			Checks: []*servicev1.Check{{Type: "http", Path: "/", Interval: "10s", Header: map[string]*servicev1.HeaderValues{"Accept": {Values: []string{"x"}}}}},
			Connect: &servicev1.Connect{SidecarService: &servicev1.SidecarService{Proxy: &servicev1.Proxy{
				Upstreams: []*servicev1.Upstream{{DestinationName: "db", LocalBindPort: 5432}}, Config: config,
			}}},
		}, {Name: "plain"}},
		Ports:    []*hostv1.Port{{Label: "http"}, {Label: "admin", Static: 8080}},
		Sidecars: []*hostv1.Sidecar{{Service: "web", Command: []string{"envoy", "-c", "${bootstrap}"}, Env: map[string]string{"X": "y"}, User: "envoy"}},
		Devices:  []*hostv1.DeviceRequest{{Name: "nvidia/gpu", Count: 2}},
		After:    []string{"db-1", "other/db-2"}, Replaces: []string{"web-1"},
	}
}

// What is asked for is what is shown, and what comes back from a record.
func TestWorkloadSpecGoesThereAndBack(t *testing.T) {
	asked := meshed(t)
	spec, err := workloadSpec(asked)
	must(t, err)
	shown, err := shownWorkloadSpec(spec)
	must(t, err)
	if !proto.Equal(asked, shown) {
		t.Errorf("asked\n%v\nshown\n%v", asked, shown)
	}
	raw, err := json.Marshal(spec)
	must(t, err)
	var back workload.Spec
	must(t, json.Unmarshal(raw, &back))
	if !reflect.DeepEqual(spec, back) {
		t.Errorf("asked\n%+v\nfrom the record\n%+v", spec, back)
	}
	// A field that is added to the specification must be carried over.
	full := reflect.ValueOf(spec)
	for n := range full.NumField() {
		if name := full.Type().Field(n).Name; full.Field(n).IsZero() && name != "Volumes" {
			t.Errorf("Spec.%s is not carried over", name)
		}
	}
	asked.Services[0].Connect.SidecarService.Proxy.Config.Fields["n"] = &structpb.Value{}
	if _, err := workloadSpec(asked); connect.CodeOf(withCode(t.Context(), err)) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), `service "web"`) {
		t.Errorf("a value that is none: %v", err)
	}
}

func TestShownServices(t *testing.T) {
	consul := &consulFake{problems: map[string]string{"default": "it is away", "east": ""}}
	s := New(Config{Name: "n1", Services: consul})
	w := workload.Workload{
		Spec: workload.Spec{WorkloadRef: claim.WorkloadRef{Namespace: "default", ID: "web"}}, State: workload.Running,
		SecretsDir: "/s/default/web", Ports: map[string]int{"http": 20000},
		Services: []workload.ServiceStatus{
			{
				Name: "web", ID: "web-id", ProxyID: "web-id-sidecar-proxy", Consul: "default", Port: 20000, Accessor: "acc", ExpiresAt: time.Unix(5, 0),
				TokenFile: "/s/default/web/web/si_token", BootstrapFile: "/s/default/web/web/envoy_bootstrap.json", AdminPort: 1, ReadyPort: 2, Message: "its own",
			},
			{Name: "plain", ID: "plain-id", Consul: "default"},
			{Name: "far", ID: "far-id", Consul: "east"},
		},
		Steps: []workload.Step{{Name: "register", Service: "web", State: workload.StepDone}},
	}
	got, err := s.shownWorkload(w)
	must(t, err)
	want := &hostv1.ServiceStatus{
		Name: "web", Id: "web-id", ProxyId: "web-id-sidecar-proxy", Consul: "default", Port: 20000, TokenAccessor: "acc", TokenExpiresAt: timestamp(time.Unix(5, 0)),
		TokenFile: "/s/default/web/web/si_token", BootstrapFile: "/s/default/web/web/envoy_bootstrap.json", AdminPort: 1, ReadyPort: 2, Message: "its own",
	}
	if len(got.Services) != 3 || !proto.Equal(got.Services[0], want) {
		t.Fatalf("shown %v", got.Services)
	}
	if got.Services[1].Message != "it is away" || got.Services[2].Message != "" || got.Services[1].TokenExpiresAt != nil {
		t.Errorf("shown %v", got.Services[1:])
	}
	if got.SecretsDir != "/s/default/web" || got.Ports["http"] != 20000 || got.Steps[0].Service != "web" {
		t.Errorf("shown %v", got)
	}
}

// The specification's services reach the workloads, and what is wrong with them is
// the caller's to correct.
func TestStartWithServices(t *testing.T) {
	var asked []workload.Spec
	h := openHost(t, func(c *Config) { c.Workloads = startOnly{c.Workloads, &asked} })
	stream, err := h.client.Workloads.StartWorkload(h.ctx, request(&hostv1.StartWorkloadRequest{Spec: meshed(t)}))
	must(t, err)
	defer stream.Close()
	var w *hostv1.Workload
	for stream.Receive() {
		w = stream.Msg().GetWorkload()
	}
	must(t, stream.Err())
	if !proto.Equal(w.GetSpec(), meshed(t)) || len(asked) != 1 || asked[0].Services[0].Connect.SidecarService.Proxy.Config["n"] != 3.5 {
		t.Errorf("asked for %+v, shown %v", asked, w)
	}
}

// startOnly answers a start at once.
type startOnly struct {
	Workloads
	asked *[]workload.Spec
}

func (s startOnly) Start(_ context.Context, spec workload.Spec, _ workload.Options) (workload.Workload, error) {
	*s.asked = append(*s.asked, spec)
	return workload.Workload{Spec: spec, State: workload.Running}, nil
}
