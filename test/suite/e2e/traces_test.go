package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/otlp"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

const (
	command  = "pannier pannier workload "
	called   = " > pannier pannier.host.v1.WorkloadService/"
	served   = " > pannier-agent pannier.host.v1.WorkloadService/"
	stored   = " > pannier-agent pannier.plugin.storage.v1.StorageService/"
	startWay = command + "start" + called + "StartWorkload" + served + "StartWorkload"
	stopWay  = command + "stop" + called + "StopWorkload" + served + "StopWorkload > pannier-agent release"
)

// tracedRun runs a command that exports its spans.
func tracedRun(t *testing.T, h *testhost.Host, c *otlp.Collector, args ...string) {
	t.Helper()
	cmd := h.Command(args...)
	cmd.Env = append(cmd.Env, c.Env()...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("pannier %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// A start is one trace, from the command to the calls of plugins, and so is a stop.
func TestTraces(t *testing.T) {
	t.Parallel()
	c := otlp.New(t, nil)
	h := testhost.New(t, testhost.LocalDriver(t)+"\ntraces {\n  endpoint = \""+c.URL+"\"\n}\n")
	h.Env = []string{"OTEL_BSP_SCHEDULE_DELAY=100"}
	h.Start()
	volume(h, drivers[0], "data", "single-node-writer", "")
	tracedRun(t, h, c, "workload", "start", workload(h, "w", "data", ""))
	trace := c.Await(t, startWay+" > pannier-agent step claim > pannier-agent raft apply",
		startWay+" > pannier-agent step stage"+stored+"Stage > csi-bridge csi NodeStageVolume",
		startWay+" > pannier-agent step publish"+stored+"Publish > csi-bridge csi NodePublishVolume")
	for _, s := range trace {
		switch {
		case s.Name == "step stage":
			wantAttributes(t, s, map[string]string{"pannier.workload": "w", "pannier.volume": "data", "host.name": "a"})
		case strings.HasSuffix(s.Name, "/Stage"):
			wantAttributes(t, s, map[string]string{"pannier.plugin": "csi-bridge", "pannier.generation": "1"})
		case s.Name == "csi NodeStageVolume":
			wantAttributes(t, s, map[string]string{
				"pannier.plugin": "csi-bridge", "pannier.driver": "local", "pannier.volume": "data", "host.name": "a",
			})
		}
	}
	if !slices.ContainsFunc(strings.Split(h.LogTail(), "\n"), func(line string) bool {
		return strings.Contains(line, "api call: call=") && strings.Contains(line, "/StartWorkload object=w ") &&
			strings.Contains(line, "trace_id="+trace[0].Trace)
	}) {
		t.Errorf("the call is not in the log with its trace %s\n%s", trace[0].Trace, h.LogTail())
	}
	tracedRun(t, h, c, "workload", "stop", "w")
	c.Await(t, stopWay+" > pannier-agent undo publish"+stored+"Unpublish", stopWay+" > pannier-agent undo claim")
	for _, s := range c.Spans() { // a trace begins with a command or a call of the API
		if first := otlp.Path(c.Spans(), s)[0]; !strings.Contains(first, " pannier ") && !strings.Contains(first, "host.v1") {
			t.Errorf("a trace begins with %s", first)
		}
	}
}

func wantAttributes(t *testing.T, s otlp.Span, want map[string]string) {
	t.Helper()
	for key, value := range want {
		if s.Attributes[key] != value {
			t.Errorf("%s of span %q is %q, want %q", key, s.Name, s.Attributes[key], value)
		}
	}
}

// A collector that hangs, or is away, delays neither calls nor the agent's end by more than the time it has.
func TestTracesNotTaken(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(t *testing.T) *otlp.Collector{
		"hangs": func(t *testing.T) *otlp.Collector {
			c := otlp.New(t, nil)
			c.Hang()
			return c
		},
		"away": func(t *testing.T) *otlp.Collector {
			return &otlp.Collector{URL: "http://" + testhost.FreeAddress(t, "127.0.0.1")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := prepare(t)
			h := testhost.New(t, testhost.LocalDriver(t))
			h.Env = append(c.Env(), "OTEL_BSP_MAX_QUEUE_SIZE=8", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=4")
			h.Start()
			client, ctx := h.Client(), testhost.Soon(t)
			for range 200 { // many more than the queue has room for
				if _, err := client.Agent.Status(ctx, &hostv1.StatusRequest{}); err != nil {
					t.Fatal(err)
				}
			}
			volume(h, drivers[0], "data", "single-node-writer", "")
			tracedRun(t, h, c, "workload", "start", workload(h, "w", "data", ""))
			tracedRun(t, h, c, "workload", "stop", "w")
			began := time.Now()
			h.Stop()
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("the agent's end took %s", took)
			}
		})
	}
}

// The calls of Consul for a workload with a sidecar are in the trace of its start, and no secret is.
func TestMeshTraces(t *testing.T) {
	t.Parallel()
	c := otlp.New(t, nil)
	m := newMesh(t, minted, testhost.LocalDriver(t))
	m.Env = c.Env()
	m.open()
	tracedRun(t, m.Host, c, "workload", "start", m.meshWorkload("w", sidecarService("api", "")))
	const plugin = " > pannier-agent pannier.plugin."
	c.Await(t,
		startWay+" > pannier-agent step register"+plugin+"registration.v1.RegistrationService/Register > consul-services consul PUT",
		startWay+" > pannier-agent step identify"+plugin+"identity.v1.IdentityService/Derive > sids consul PUT",
		startWay+" > pannier-agent step bootstrap"+plugin+"bootstrap.v1.BootstrapService/Generate > envoy-bootstrap consul GET")
	secret := m.secret(m.service("w"))
	tracedRun(t, m.Host, c, "workload", "stop", "w")
	c.Await(t, stopWay+" > pannier-agent undo identify"+plugin+"identity.v1.IdentityService/Revoke > sids consul DELETE")
	for _, s := range []string{secret, m.nodeToken, m.aclToken} {
		if s == "" || strings.Contains(c.Raw(), s) {
			t.Errorf("the spans contain the secret of a token, or it is not known: %q", s)
		}
	}
}

// Spans that wait for the collector are exported before another program replaces the agent's, and at its end.
func TestTracesAreFlushed(t *testing.T) {
	t.Parallel()
	c := otlp.New(t, nil)
	h := testhost.New(t, testhost.LocalDriver(t))
	h.Env = append(c.Env(), "OTEL_BSP_SCHEDULE_DELAY=3600000") // the last one counts
	h.Install(read(t, testbin.BuildVersion(t, pannierAgent, "1.0.0")))
	h.Start()
	volume(h, drivers[0], "first", "single-node-writer", "")
	h.Install(read(t, testbin.BuildVersion(t, pannierAgent, "1.0.1")))
	h.Run("agent", "upgrade")
	volume(h, drivers[0], "second", "single-node-writer", "")
	h.Stop()
	var versions []string
	for _, s := range c.Spans() {
		if s.Name == "pannier.host.v1.VolumeService/CreateVolume" {
			versions = append(versions, s.Attributes["service.version"])
		}
	}
	if !slices.Equal(versions, []string{"v1.0.0", "v1.0.1"}) {
		t.Errorf("the volumes were made by agents of the versions %v", versions)
	}
}
