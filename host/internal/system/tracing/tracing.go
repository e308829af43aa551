// Package tracing records OpenTelemetry traces and exports them over OTLP/HTTP. Calls between programs are traced by
// the handlers that it gives to their servers and clients; what happens within one by Start and Span.
//
// Invariants: while tracing is off, no call has a handler. A trace begins with a command or a call of the API, never
// with a heartbeat or a poll. Recording waits for nothing: what the collector does not take in time is dropped. Names
// and attributes of spans are those of objects; no request, answer or header is recorded.
package tracing

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/otelconnect"
	"github.com/hashicorp/go-hclog"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
)

// The attributes of spans, besides those of OpenTelemetry's conventions.
const (
	Workload   = attribute.Key("pannier.workload")
	Volume     = attribute.Key("pannier.volume")
	Service    = attribute.Key("pannier.service")
	Node       = attribute.Key("pannier.node")
	Plugin     = attribute.Key("pannier.plugin")
	Generation = attribute.Key("pannier.generation")
)

// scope names this program as what records spans.
const scope = "github.com/pannier/pannier/host"

// Config has the recorder's identity and the spans' destination.
type Config struct {
	Program, Version string
	// Node is the name of the agent; empty: this is none.
	Node string
	// Endpoint is the base URL of an OTLP/HTTP collector, such as http://127.0.0.1:4318. The environment variables of
	// OpenTelemetry win over it; empty: they alone decide.
	Endpoint string
	Log      hclog.Logger
}

// Tracer records spans. A nil Tracer is off: its methods do nothing.
type Tracer struct {
	exporter sdktrace.SpanExporter
	provider *sdktrace.TracerProvider
	inner    *sdktrace.TracerProvider // begins no trace
	plugins  sdktrace.SpanProcessor   // so that no plugin takes the host's place in the queue
	resource *resource.Resource       // of every program on this node
	scope    trace.Tracer
}

var propagator = propagation.TraceContext{}

// Open returns a Tracer, or nil if neither the environment nor the configuration names a collector. It connects to
// nothing yet.
func Open(ctx context.Context, cfg Config) (*Tracer, error) {
	var options []otlptracehttp.Option
	switch {
	case os.Getenv("OTEL_SDK_DISABLED") == "true" || os.Getenv("OTEL_TRACES_EXPORTER") == "none":
		return nil, nil
	case os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "":
	case cfg.Endpoint != "":
		options = append(options, otlptracehttp.WithEndpointURL(strings.TrimRight(cfg.Endpoint, "/")+"/v1/traces"))
	default:
		return nil, nil
	}
	exporter, err := otlptracehttp.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	otel.SetErrorHandler(&failures{log: cfg.Log})
	t := &Tracer{exporter: exporter, plugins: sdktrace.NewBatchSpanProcessor(shared{exporter})}
	var node []attribute.KeyValue
	if cfg.Node != "" {
		node = append(node, attribute.String("host.name", cfg.Node))
	}
	// A faulty OTEL_RESOURCE_ATTRIBUTES is reported with the resource that can be made of the rest.
	if t.resource, err = resource.New(ctx, resource.WithAttributes(node...), resource.WithFromEnv()); err != nil {
		cfg.Log.Warn("the environment's attributes of traces", "error", err)
	}
	program := t.of(attribute.String("service.name", cfg.Program), attribute.String("service.version", cfg.Version))
	host := sdktrace.NewBatchSpanProcessor(shared{exporter})
	t.provider = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(host), sdktrace.WithResource(program))
	t.inner = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(host), sdktrace.WithResource(program),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))
	t.scope = t.provider.Tracer(scope)
	return t, nil
}

// of returns the resource of a program.
func (t *Tracer) of(program ...attribute.KeyValue) *resource.Resource {
	merged, err := resource.Merge(t.resource, resource.NewSchemaless(program...))
	if err != nil {
		return t.resource // their schemas differ, and one of them has none
	}
	return merged
}

// Record exports spans that a plugin has recorded, and whose texts are cut. Invalid spans are dropped.
func (t *Tracer) Record(plugin string, spans []*pluginv1.Span) {
	if t == nil {
		return
	}
	program := t.of(attribute.String("service.name", plugin))
	for _, s := range spans {
		stub := tracetest.SpanStub{
			Name: s.GetName(), SpanContext: contextOf(s.GetTraceId(), s.GetSpanId()),
			Parent: contextOf(s.GetTraceId(), s.GetParentId()), SpanKind: trace.SpanKindInternal,
			StartTime: s.GetBegan().AsTime(), EndTime: s.GetEnded().AsTime(),
			Attributes: []attribute.KeyValue{Plugin.String(plugin)}, Resource: program,
			InstrumentationScope: instrumentation.Scope{Name: plugin},
		}
		if !stub.SpanContext.IsValid() || !stub.Parent.IsValid() || s.GetBegan().CheckValid() != nil ||
			s.GetEnded().CheckValid() != nil {
			continue
		}
		for key, value := range s.GetAttributes() {
			if key != string(Plugin) {
				stub.Attributes = append(stub.Attributes, attribute.String(key, value))
			}
		}
		if s.GetClient() {
			stub.SpanKind = trace.SpanKindClient
		}
		if s.GetFailed() {
			stub.Status = sdktrace.Status{Code: codes.Error, Description: s.GetError()}
		}
		t.plugins.OnEnd(stub.Snapshot())
	}
}

// contextOf returns the context of a span, which is not valid if an id is not.
func contextOf(traceID, spanID []byte) trace.SpanContext {
	var cfg trace.SpanContextConfig
	if len(traceID) == len(cfg.TraceID) && len(spanID) == len(cfg.SpanID) {
		cfg.TraceID, cfg.SpanID, cfg.TraceFlags = trace.TraceID(traceID), trace.SpanID(spanID), trace.FlagsSampled
	}
	return trace.NewSpanContext(cfg)
}

// Close exports what is recorded, until patience has passed, even if ctx has ended, and drops the rest.
func (t *Tracer) Close(ctx context.Context, patience time.Duration) {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	var all sync.WaitGroup
	all.Go(func() { _ = t.plugins.Shutdown(ctx) }) // an error is reported by the exporter, or is ctx's
	_ = t.provider.Shutdown(ctx)
	all.Wait()
	_ = t.exporter.Shutdown(ctx)
}

// shared is an exporter that outlives those who use it.
type shared struct{ sdktrace.SpanExporter }

// Shutdown implements sdktrace.SpanExporter.
func (shared) Shutdown(context.Context) error { return nil }

// Flush exports what is recorded, until patience has passed.
func (t *Tracer) Flush(ctx context.Context, patience time.Duration) {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var all sync.WaitGroup
	all.Go(func() { _ = t.plugins.ForceFlush(ctx) }) // as in Close
	_ = t.provider.ForceFlush(ctx)
	all.Wait()
}

// Begin begins a span that may be the first of a trace. end takes its error.
func (t *Tracer) Begin(ctx context.Context, name string, attributes ...attribute.KeyValue,
) (_ context.Context, end func(error)) {
	if t == nil {
		return ctx, func(error) {}
	}
	ctx, span := t.scope.Start(ctx, name, trace.WithAttributes(attributes...))
	return ctx, func(err error) { End(span, err) }
}

// Connect returns the interceptors of a server or a client of the API.
func (t *Tracer) Connect() []connect.Interceptor {
	if t == nil {
		return nil
	}
	i, err := otelconnect.NewInterceptor(otelconnect.WithTracerProvider(t.provider),
		otelconnect.WithPropagator(propagator), otelconnect.WithTrustRemote(), otelconnect.WithoutMetrics())
	if err != nil {
		panic(err) // it has no metrics, which alone can fail
	}
	return []connect.Interceptor{i}
}

// Server returns the options of a gRPC server.
func (t *Tracer) Server() []grpc.ServerOption {
	if t == nil {
		return nil
	}
	return []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(t.grpc()...))}
}

// Client returns the options of a gRPC client, whose spans have the attributes.
func (t *Tracer) Client(attributes ...attribute.KeyValue) []grpc.DialOption {
	if t == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithStatsHandler(otelgrpc.NewClientHandler(append(t.grpc(),
		otelgrpc.WithSpanAttributes(attributes...))...))}
}

func (t *Tracer) grpc() []otelgrpc.Option {
	return []otelgrpc.Option{otelgrpc.WithTracerProvider(t.inner), otelgrpc.WithPropagators(propagator)}
}

// Forward begins the span of a request that is passed on, within the one that its header names. onward is the header
// that names the new one.
func (t *Tracer) Forward(r *http.Request, onward http.Header, name string, attributes ...attribute.KeyValue,
) (end func(error)) {
	if t == nil {
		return func(error) {}
	}
	ctx, span := t.scope.Start(propagator.Extract(r.Context(), propagation.HeaderCarrier(r.Header)), name,
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes...))
	propagator.Inject(ctx, propagation.HeaderCarrier(onward))
	return func(err error) { End(span, err) }
}

// Span begins a span within the one of ctx. Outside a trace it records nothing.
func Span(ctx context.Context, name string, attributes ...attribute.KeyValue) (context.Context, trace.Span) {
	return trace.SpanFromContext(ctx).TracerProvider().Tracer(scope).Start(ctx, name, trace.WithAttributes(attributes...))
}

// Logged returns the trace that ctx is in as the key and value of a log entry. It is empty if none is recorded.
func Logged(ctx context.Context) []any {
	if id := TraceID(ctx); id != "" {
		return []any{"trace_id", id}
	}
	return nil
}

// TraceID returns the id of the trace that ctx is in; empty: it is in none that is recorded.
func TraceID(ctx context.Context) string {
	if in := trace.SpanContextFromContext(ctx); in.IsValid() && in.IsSampled() {
		return in.TraceID().String()
	}
	return ""
}

// End ends a span with its outcome. Errors contain no secrets.
func End(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

// reportInterval is how often failed exports are reported.
const reportInterval = time.Minute

// failures reports that spans cannot be exported, in the log and not too often.
type failures struct {
	log  hclog.Logger
	mu   sync.Mutex
	last time.Time
}

// Handle implements otel.ErrorHandler.
func (f *failures) Handle(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.last) < reportInterval {
		return
	}
	f.last = time.Now()
	f.log.Warn("traces are not exported: check the collector", "error", err)
}
