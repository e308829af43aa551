package hostservices

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/plugintest"
	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
)

// recording is a plugin that records spans when it validates a configuration, and what it was told of a trace.
type recording struct {
	spans int
	in    trace.SpanContext
}

func (r *recording) Validate(ctx context.Context, _ []byte) error {
	r.in = trace.SpanContextFromContext(ctx)
	for n := range r.spans {
		_, span := sdk.Span(ctx, fmt.Sprint(n, strings.Repeat("x", 1000)), trace.WithAttributes(attribute.Int("n", n)))
		span.End()
		span.End() // the second time does nothing
	}
	return nil
}

func TestSpansOfAPlugin(t *testing.T) {
	got := make(chan []*pluginv1.Span, 5000)
	s := New(Config{
		Journal: openJournal(t, t.TempDir()), Log: hclog.NewNullLogger(),
		Spans: func(plugin string, spans []*pluginv1.Span) {
			if plugin != "page" {
				t.Errorf("they are of plugin %q", plugin)
			}
			got <- spans
		},
	})
	t.Cleanup(func() { _ = s.Close() })
	impl := &recording{}
	conn := plugintest.Serve(t, sdk.Plugin{Kind: "test.v1", Impl: impl, Register: func(grpc.ServiceRegistrar) {}}).Conn
	validate := func(traceparent string, spans int) trace.SpanContext {
		t.Helper()
		impl.spans = spans
		ctx := metadata.AppendToOutgoingContext(within(t), "traceparent", traceparent)
		if _, err := pluginv1.NewPluginServiceClient(conn).Validate(ctx, &pluginv1.ValidateRequest{}); err != nil {
			t.Fatal(err)
		}
		return impl.in
	}
	const id, parent = "0123456789abcdef0123456789abcdef", "0123456789abcdef"
	for _, bad := range []string{
		"", "00", "00-" + id + "-" + parent, "ff-" + id + "-" + parent + "-01", "00-" + id + "-" + parent + "-xx",
		"00-" + strings.Repeat("0", 32) + "-" + parent + "-01", "00-" + id + "-" + strings.Repeat("z", 16) + "-01",
	} {
		if in := validate(bad, 1); in.IsValid() {
			t.Errorf("%q puts the call into a trace", bad)
		}
	}
	if in := validate("00-"+id+"-"+parent+"-00", 1); !in.IsValid() || in.IsSampled() {
		t.Errorf("without a sampled trace the context is %v", in)
	}
	if len(got) != 0 {
		t.Errorf("spans outside a trace were recorded: %v", <-got)
	}
	// More than are kept while there is no host: recording waits for nothing, and the first ones are kept.
	if in := validate("00-"+id+"-"+parent+"-01", 3000); in.TraceID().String() != id || !in.IsRemote() {
		t.Errorf("the context is %v", in)
	}
	s.Attach("page", conn)
	var all []*pluginv1.Span
	for len(all) < 1000 {
		select {
		case spans := <-got:
			all = append(all, spans...)
		case <-within(t).Done():
			t.Fatalf("%d spans came", len(all))
		}
	}
	for n, span := range all {
		want := trace.SpanID{}
		copy(want[:], span.GetParentId())
		if len(span.GetName()) > wire.MaxSpanName || want.String() != parent || span.GetAttributes()["n"] != fmt.Sprint(n) ||
			bytes.Equal(span.GetSpanId(), span.GetParentId()) {
			t.Fatalf("span %d is %v", n, span)
		}
	}
	if len(all) != 1000 || len(got) != 0 {
		t.Errorf("%d spans and %d requests more", len(all), len(got))
	}
}

// A plugin without the SDK may send spans of any size.
func TestSpansAreCut(t *testing.T) {
	var got []*pluginv1.Span
	s := New(Config{
		Journal: openJournal(t, t.TempDir()), Log: hclog.NewNullLogger(),
		Spans: func(_ string, spans []*pluginv1.Span) { got = spans },
	})
	t.Cleanup(func() { _ = s.Close() })
	long := strings.Repeat("n", 1<<16)
	if _, err := s.record("page", &pluginv1.RecordRequest{Spans: []*pluginv1.Span{{
		Name: long, Attributes: map[string]string{long: long, "bad\xff": "\xff"},
	}}}); err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || proto.Size(got[0]) > 2*wire.MaxSpanAttribute+wire.MaxSpanName+64 ||
		!utf8.ValidString(got[0].String()) {
		t.Errorf("the spans are %v", got)
	}
}
