package hostservices

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/plugintest"
	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
)

func TestMain(m *testing.M) {
	// The connection of HostState lives as long as the plugin's process, which is the test's here.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("google.golang.org/grpc/internal/grpcsync.(*CallbackSerializer).run"))
}

func openJournal(t *testing.T, dir string) *journal.Journal {
	t.Helper()
	j, err := journal.Open(dir, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j
}

func serve(t *testing.T, j *journal.Journal) *Services {
	t.Helper()
	s := New(Config{Journal: j, Log: hclog.NewNullLogger()})
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// plugin serves a plugin of no kind in this process.
func plugin(t *testing.T) *grpc.ClientConn {
	t.Helper()
	return plugintest.Serve(t, sdk.Plugin{Kind: "test.v1", Register: func(grpc.ServiceRegistrar) {}}).Conn
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func wantState(t *testing.T, key, want string) {
	t.Helper()
	if got, found, err := sdk.HostState().Get(within(t), key); err != nil || !found || string(got) != want {
		t.Errorf("%s is %q, %v, %v, want %q", key, got, found, err, want)
	}
}

// The next host, and the plugin's next process, read what an earlier host has stored.
func TestStateOutlivesTheHost(t *testing.T) {
	dir, conn, ctx := t.TempDir(), plugin(t), within(t)
	j := openJournal(t, dir)
	first := serve(t, j)
	first.Attach("page", conn)
	state := sdk.HostState()
	for key, value := range map[string]string{"a/1": "one", "a/2": "two", "b": ""} {
		if err := state.Put(ctx, key, []byte(value)); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}

	waiting := make(chan error, 1)
	go func() { _, _, err := state.Get(ctx, "b"); waiting <- err }() // while there is no host
	second := serve(t, openJournal(t, dir))
	second.Attach("page", conn)
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	wantState(t, "a/1", "one")
	if keys, err := state.List(ctx, "a/"); err != nil || !slices.Equal(keys, []string{"a/1", "a/2"}) {
		t.Errorf("the keys are %q, %v", keys, err)
	}
	if err := state.Delete(ctx, "a/1"); err != nil {
		t.Error(err)
	}
	if _, found, err := state.Get(ctx, "a/1"); found || err != nil {
		t.Errorf("a deleted key: %v, %v", found, err)
	}
	for _, row := range []struct {
		expected []byte
		want     bool
	}{{nil, false}, {[]byte("other"), false}, {[]byte("two"), true}} {
		if swapped, err := state.CompareAndSwap(ctx, "a/2", row.expected, []byte("new")); swapped != row.want || err != nil {
			t.Errorf("swap of %q: %v, %v", row.expected, swapped, err)
		}
	}
	if swapped, err := state.CompareAndSwap(ctx, "c", nil, []byte("first")); !swapped || err != nil {
		t.Errorf("a new key: %v, %v", swapped, err)
	}
	wantState(t, "a/2", "new")
	if err := second.Forget("page"); err != nil {
		t.Error(err)
	}
	if keys, err := state.List(ctx, ""); err != nil || len(keys) != 0 {
		t.Errorf("a forgotten plugin still has %q, %v", keys, err)
	}
}

// A plugin reaches its own state only, whatever it asks for.
func TestStateIsOfOnePlugin(t *testing.T) {
	s := serve(t, openJournal(t, t.TempDir())).states
	for _, p := range []string{"one", "two"} {
		if _, err := s.put(p, &pluginv1.PutRequest{Key: "k", Value: []byte(p)}); err != nil {
			t.Fatal(err)
		}
	}
	if res, err := s.get("one", &pluginv1.GetRequest{Key: "k"}); err != nil || string(res.GetValue()) != "one" {
		t.Errorf("one reads %q, %v", res.GetValue(), err)
	}
	for _, key := range []string{"two/k", "../two/k", "\x00two\x00k", "plugin-state/two\x00k", "../plugin-state/two\x00k"} {
		if res, err := s.get("one", &pluginv1.GetRequest{Key: key}); err == nil {
			t.Errorf("%q reads %q", key, res.GetValue())
		}
	}
	if err := s.forget("one"); err != nil {
		t.Fatal(err)
	}
	if res, err := s.list("two", &pluginv1.ListRequest{}); err != nil || !slices.Equal(res.GetKeys(), []string{"k"}) {
		t.Errorf("the other one has %q, %v", res.GetKeys(), err)
	}
}

func TestStateIsBounded(t *testing.T) {
	s := serve(t, openJournal(t, t.TempDir()))
	s.Attach("page", plugin(t))
	state, ctx := sdk.HostState(), within(t)
	for name, row := range map[string]struct {
		key   string
		value int
	}{
		"no key": {"", 1}, "a long key": {strings.Repeat("k", wire.MaxStateKey+1), 1},
		"no UTF-8": {"\xff", 1}, "a long value": {"k", wire.MaxStateValue + 1},
	} {
		err := state.Put(ctx, row.key, make([]byte, row.value))
		if c := status.Code(err); c != codes.InvalidArgument && name != "no UTF-8" || err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	full := 0
	for ; full < 40; full++ {
		if err := state.Put(ctx, fmt.Sprintf("%02d", full), bytes.Repeat([]byte{255}, wire.MaxStateValue)); err != nil {
			if status.Code(err) != codes.ResourceExhausted {
				t.Error(err)
			}
			break
		}
	}
	if full != 31 { // 32 times 32 KiB and the keys
		t.Errorf("%d of the largest values were kept", full)
	}
	if err := state.Put(ctx, "00", nil); err != nil {
		t.Errorf("a smaller value in place of a larger one: %v", err)
	}
	if err := s.Forget("page"); err != nil {
		t.Fatal(err)
	}
	for n := range 1001 {
		_, err := s.states.put("page", &pluginv1.PutRequest{Key: fmt.Sprint(n)})
		if (err == nil) != (n < 1000) {
			t.Fatalf("key %d: %v", n, err)
		}
	}
}

// A full state is reported at once, and once; the refusal says what to do, and another limit counts for the next write.
func TestFullStateIsReported(t *testing.T) {
	var told []string
	s := New(Config{
		Journal: openJournal(t, t.TempDir()), Log: hclog.NewNullLogger(),
		Full: func(plugin, message string) { told = append(told, plugin+": "+message) },
	})
	t.Cleanup(func() { _ = s.Close() })
	s.Attach("page", plugin(t))
	state, ctx := sdk.HostState(), within(t)
	s.LimitStates(map[string]int64{"page": 64 << 10, "other": 1 << 20})
	fill := func() (err error) {
		for n := 0; err == nil && n < 100; n++ {
			err = state.Put(ctx, fmt.Sprintf("%02d", n), make([]byte, wire.MaxStateValue))
		}
		return err
	}
	for range 3 {
		err := fill()
		if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "raise state_limit in its plugin block") ||
			!strings.Contains(err.Error(), "65536 bytes") {
			t.Errorf("a full state: %v", err)
		}
		if err := state.Delete(ctx, "00"); err != nil {
			t.Fatal(err)
		}
		if len(told) != 1 || !strings.HasPrefix(told[0], "page: the plugin's state is full") {
			t.Errorf("it is reported as %q", told)
		}
		if keys, err := state.List(ctx, ""); err != nil || len(keys) > 1 {
			t.Errorf("it has %q, %v", keys, err)
		}
	}
	s.LimitStates(map[string]int64{"page": 1 << 20})
	if err := state.Put(ctx, "more", make([]byte, wire.MaxStateValue)); err != nil {
		t.Errorf("after the limit was raised: %v", err)
	}
	if err := state.Put(ctx, "more yet", make([]byte, wire.MaxStateValue)); err != nil {
		t.Errorf("after the limit was raised: %v", err)
	}
	if err := s.Forget("page"); err != nil {
		t.Fatal(err)
	}
}

var (
	visits  = sdk.NewCounter("visits_total", "Visits.", "page")
	busy    = sdk.NewGauge("busy", "Visitors now.")
	latency = sdk.NewHistogram("latency_seconds", "Latency.", []float64{.1, 1})
)

// visited is done once, since the metrics are the process's.
var visited = sync.OnceFunc(func() {
	visits.Add(2, "start")
	busy.Set(3)
	latency.Observe(.5)
})

func TestMetricsOfAPlugin(t *testing.T) {
	s := serve(t, openJournal(t, t.TempDir()))
	conn := plugin(t)
	s.Attach("page", conn)
	visited()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(s)
	want := `
# HELP pannier_plugin_custom_busy Visitors now.
# TYPE pannier_plugin_custom_busy gauge
pannier_plugin_custom_busy{plugin="page"} 3
# HELP pannier_plugin_custom_latency_seconds Latency.
# TYPE pannier_plugin_custom_latency_seconds histogram
pannier_plugin_custom_latency_seconds_bucket{plugin="page",le="0.1"} 0
pannier_plugin_custom_latency_seconds_bucket{plugin="page",le="1"} 1
pannier_plugin_custom_latency_seconds_bucket{plugin="page",le="+Inf"} 1
pannier_plugin_custom_latency_seconds_sum{plugin="page"} 0.5
pannier_plugin_custom_latency_seconds_count{plugin="page"} 1
# HELP pannier_plugin_custom_visits_total Visits.
# TYPE pannier_plugin_custom_visits_total counter
pannier_plugin_custom_visits_total{page="start",plugin="page"} 2
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

// hostile answers with metrics that break the rules, or would break the host's page.
type hostile struct {
	pluginv1.UnimplementedHostServiceServer
}

func (hostile) Metrics(context.Context, *pluginv1.MetricsRequest) (*pluginv1.MetricsResponse, error) {
	counter := func(name string, labels []string, values ...string) *pluginv1.Metric {
		return &pluginv1.Metric{
			Name: name, Kind: pluginv1.Metric_KIND_COUNTER, Labels: labels,
			Series: []*pluginv1.Series{{Values: values}},
		}
	}
	many := counter("many", []string{"n"}, "0")
	for n := range 3000 {
		many.Series = append(many.Series, &pluginv1.Series{Values: []string{fmt.Sprint(n)}})
	}
	return &pluginv1.MetricsResponse{Metrics: []*pluginv1.Metric{
		counter("Upper", nil), counter("", nil), counter("a\nb 1", nil), counter("other_plugin", []string{"plugin"}, "x"),
		counter("le", []string{"le"}, "1"), counter("few", []string{"a"}), counter("twice", []string{"a", "a"}, "1", "2"),
		counter("long", []string{"a"}, strings.Repeat("x", 1000)),
		{Name: "kindless", Series: []*pluginv1.Series{{}}},
		counter("good", nil), counter("good", nil),
		{Name: "good", Kind: pluginv1.Metric_KIND_GAUGE},
		many,
	}}, nil
}

// A plugin cannot break the host's page of metrics, nor pass off its own for another's.
func TestMetricsOfAHostilePlugin(t *testing.T) {
	s := serve(t, openJournal(t, t.TempDir()))
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pluginv1.RegisterHostServiceServer(server, hostile{})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("unix:"+listener.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	s.links["hostile"] = []*grpc.ClientConn{conn}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(s)
	families, err := registry.Gather()
	if err != nil {
		t.Error(err)
	}
	series := map[string]int{}
	for _, f := range families {
		series[f.GetName()] = len(f.GetMetric())
	}
	want := map[string]int{MetricPrefix + "good": 1, MetricPrefix + "many": wire.MaxSeries - 1}
	if !maps.Equal(series, want) {
		t.Errorf("the page has %v, want %v", series, want)
	}
}
