package sdk

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
)

// Span begins a span within the call of the host that ctx belongs to; End ends it. The host exports it with its own. It
// records nothing where the host does not trace the call. The context has OpenTelemetry's span, so instrumentation that
// takes its tracer from there, as trace.SpanFromContext(ctx).TracerProvider(), records through the host too.
//
// Recording waits for nothing: the process keeps 1,000 spans that the host does not have yet, and drops further ones.
// Longer values are cut, see wire.CutSpan. Events and links are not recorded. Names, attributes and texts of errors
// must contain no secret.
func Span(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	return trace.SpanFromContext(ctx).TracerProvider().Tracer("").Start(ctx, name, options...)
}

const (
	// maxSpans bounds how many spans are kept for the host.
	maxSpans = 1000
	// spanDelay is how long spans are collected before they are sent.
	spanDelay = 200 * time.Millisecond
	// spanPatience bounds the time in which the host takes a request of spans, the last one included.
	spanPatience = 2 * time.Second
	// maxSpanBytes is the size of a request from which no more spans are added to it.
	maxSpanBytes = 32 << 10
)

// traced returns ctx with the span of the host that the call's metadata names (W3C Trace Context).
func traced(ctx context.Context) context.Context {
	values := metadata.ValueFromIncomingContext(ctx, "traceparent")
	if len(values) != 1 {
		return ctx
	}
	named := propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": values[0]})
	if in := trace.SpanContextFromContext(named); in.IsValid() {
		return trace.ContextWithSpan(ctx, &span{in: in})
	}
	return ctx
}

// provider and tracer make spans within traced calls.
type (
	provider struct{ noop.TracerProvider }
	tracer   struct{ noop.Tracer }
)

// Tracer implements trace.TracerProvider.
func (provider) Tracer(string, ...trace.TracerOption) trace.Tracer { return tracer{} }

// Start implements trace.Tracer.
func (tracer) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	parent, cfg := trace.SpanContextFromContext(ctx), trace.NewSpanStartConfig(options...)
	if !parent.IsSampled() || cfg.NewRoot() {
		return ctx, trace.SpanFromContext(ctx)
	}
	var id trace.SpanID
	_, _ = rand.Read(id[:]) // never fails
	began := cfg.Timestamp()
	if began.IsZero() {
		began = time.Now()
	}
	trunk, above := parent.TraceID(), parent.SpanID()
	s := &span{
		in: parent.WithSpanID(id).WithRemote(false),
		record: &pluginv1.Span{
			TraceId: trunk[:], SpanId: id[:], ParentId: above[:], Name: name,
			Began: timestamppb.New(began), Client: cfg.SpanKind() == trace.SpanKindClient,
			Attributes: map[string]string{},
		},
	}
	s.SetAttributes(cfg.Attributes()...)
	return trace.ContextWithSpan(ctx, s), s
}

// span is one of this process or, without a record, the host's.
type span struct {
	noop.Span
	in trace.SpanContext

	mu     sync.Mutex
	record *pluginv1.Span // nil: it has ended, or is the host's
}

// SpanContext implements trace.Span.
func (s *span) SpanContext() trace.SpanContext { return s.in }

// TracerProvider implements trace.Span.
func (s *span) TracerProvider() trace.TracerProvider { return provider{} }

// IsRecording implements trace.Span.
func (s *span) IsRecording() (is bool) {
	s.change(func(*pluginv1.Span) { is = true })
	return is
}

// SetName implements trace.Span.
func (s *span) SetName(name string) { s.change(func(r *pluginv1.Span) { r.Name = name }) }

// SetStatus implements trace.Span.
func (s *span) SetStatus(code otelcodes.Code, text string) {
	s.change(func(r *pluginv1.Span) {
		if r.Failed = code == otelcodes.Error; r.GetFailed() {
			r.Error = text
		} else {
			r.Error = ""
		}
	})
}

// SetAttributes implements trace.Span.
func (s *span) SetAttributes(all ...attribute.KeyValue) {
	s.change(func(r *pluginv1.Span) {
		for _, a := range all {
			r.Attributes[string(a.Key)] = a.Value.String()
		}
	})
}

// End implements trace.Span.
func (s *span) End(options ...trace.SpanEndOption) {
	cfg := trace.NewSpanEndConfig(options...)
	ended := cfg.Timestamp()
	if ended.IsZero() {
		ended = time.Now()
	}
	s.change(func(r *pluginv1.Span) {
		r.Ended, s.record = timestamppb.New(ended), nil
		wire.CutSpan(r)
		recorded.add(r)
	})
}

// change changes the record of a span that has one.
func (s *span) change(fn func(*pluginv1.Span)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record != nil {
		fn(s.record)
	}
}

// recorded are the spans of this process that the host does not have yet.
var recorded spanQueue

type spanQueue struct {
	mu    sync.Mutex
	kept  []*pluginv1.Span
	timer bool       // a send is due
	turn  sync.Mutex // held by who sends
}

func (q *spanQueue) add(s *pluginv1.Span) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.kept) == maxSpans {
		return
	}
	q.kept = append(q.kept, s)
	if !q.timer {
		q.timer = true
		time.AfterFunc(spanDelay, func() {
			q.mu.Lock()
			q.timer = false
			q.mu.Unlock()
			q.send()
		})
	}
}

// next takes the spans of one request.
func (q *spanQueue) next() (batch []*pluginv1.Span) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, size := 0, 0
	for n < len(q.kept) && size < maxSpanBytes {
		size += proto.Size(q.kept[n])
		n++
	}
	batch, q.kept = q.kept[:n:n], q.kept[n:]
	return batch
}

// send gives all spans to the host. What it does not take is dropped.
func (q *spanQueue) send() {
	q.turn.Lock()
	defer q.turn.Unlock()
	for {
		batch := q.next()
		if len(batch) == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), spanPatience)
		_, err := pluginv1.NewSpanServiceClient(hostConn()).Record(ctx, &pluginv1.RecordRequest{Spans: batch})
		cancel()
		if err != nil {
			q.mu.Lock()
			q.kept = nil // no host
			q.mu.Unlock()
			return
		}
	}
}
