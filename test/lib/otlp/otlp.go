// Package otlp is a collector of OpenTelemetry's traces for tests, over OTLP/HTTP.
package otlp

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"
)

// Span is one that was exported.
type Span struct {
	Trace, ID, Parent string
	Name              string
	Program           string // that recorded it: its service.name
	Error             string
	Attributes        map[string]string // the resource's included
}

// Collector receives spans.
type Collector struct {
	// URL is its address, without the path of traces.
	URL string

	mu    sync.Mutex
	spans []Span
	raw   strings.Builder
	hangs chan struct{} // open: requests are not answered; nil: they are
}

// New starts a collector on a listener, which it closes with the test; nil: on a free port of this machine.
func New(t testing.TB, on net.Listener) *Collector {
	t.Helper()
	if on == nil {
		var err error
		if on, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	c := &Collector{URL: "http://" + on.Addr().String()}
	server := &http.Server{Handler: c, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(on)
	}()
	t.Cleanup(func() {
		c.Answer()
		_ = server.Close()
		<-done
	})
	return c
}

// Env is the environment of a program that exports to the collector.
func (c *Collector) Env() []string {
	return []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.URL, "OTEL_BSP_SCHEDULE_DELAY=100"}
}

// Hang leaves requests without an answer until Answer.
func (c *Collector) Hang() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hangs = make(chan struct{})
}

// Answer ends a Hang.
func (c *Collector) Answer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hangs != nil {
		close(c.hangs)
		c.hangs = nil
	}
}

// ServeHTTP implements http.Handler.
func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	hangs := c.hangs
	c.mu.Unlock()
	if hangs != nil {
		select {
		case <-hangs:
		case <-r.Context().Done():
			return
		}
	}
	if err := c.receive(r); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer, err := proto.Marshal(&collectorpb.ExportTraceServiceResponse{})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	_, _ = w.Write(answer)
}

func (c *Collector) receive(r *http.Request) error {
	if r.URL.Path != "/v1/traces" {
		return fmt.Errorf("%s is not /v1/traces", r.URL.Path)
	}
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		unpacked, err := gzip.NewReader(r.Body)
		if err != nil {
			return err
		}
		body = unpacked
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	var req collectorpb.ExportTraceServiceRequest
	if err := proto.Unmarshal(data, &req); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw.Write(data)
	for _, from := range req.GetResourceSpans() {
		resource := map[string]string{}
		add(resource, from.GetResource().GetAttributes())
		for _, scope := range from.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				attributes := maps.Clone(resource)
				add(attributes, s.GetAttributes())
				c.spans = append(c.spans, Span{
					Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()),
					Parent: hex.EncodeToString(s.GetParentSpanId()), Name: s.GetName(), Program: resource["service.name"],
					Error: s.GetStatus().GetMessage(), Attributes: attributes,
				})
			}
		}
	}
	return nil
}

func add(to map[string]string, attributes []*commonpb.KeyValue) {
	for _, a := range attributes {
		switch v := a.GetValue().GetValue().(type) {
		case *commonpb.AnyValue_StringValue:
			to[a.GetKey()] = v.StringValue
		case *commonpb.AnyValue_IntValue:
			to[a.GetKey()] = fmt.Sprint(v.IntValue)
		default:
			to[a.GetKey()] = a.GetValue().String()
		}
	}
}

// Spans returns all that were received.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// Raw returns the bytes of all requests.
func (c *Collector) Raw() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.raw.String()
}

// Path describes the way to a span from its trace's first one: each is PROGRAM NAME, from the first to the last.
func Path(all []Span, s Span) []string {
	path := []string{s.Program + " " + s.Name}
	for s.Parent != "" {
		n := slices.IndexFunc(all, func(p Span) bool { return p.Trace == s.Trace && p.ID == s.Parent })
		if n < 0 {
			return append([]string{"?"}, path...)
		}
		s = all[n]
		path = append([]string{s.Program + " " + s.Name}, path...)
	}
	return path
}

// Await waits until one trace has all these ways, each of the spans on it joined by " > ", and returns its spans.
func (c *Collector) Await(t testing.TB, ways ...string) (trace []Span) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		traces := map[string][]Span{}
		for _, s := range c.Spans() {
			traces[s.Trace] = append(traces[s.Trace], s)
		}
		for _, trace := range traces {
			found := tree(trace)
			if !slices.ContainsFunc(ways, func(way string) bool { return !slices.Contains(found, way) }) {
				return trace
			}
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			for _, trace := range traces {
				t.Logf("a trace:\n%s", strings.Join(tree(trace), "\n"))
			}
			t.Fatalf("no trace has all of\n%s", strings.Join(ways, "\n"))
		}
	}
}

// tree returns the ways to all spans of a trace.
func tree(trace []Span) (ways []string) {
	for _, s := range trace {
		ways = append(ways, strings.Join(Path(trace, s), " > "))
	}
	slices.Sort(ways)
	return ways
}
