package workload

import (
	"cmp"
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/pannier/pannier/host/internal/system/tracing"
)

// traceIn puts what is done for the workload from now on into the trace of a span.
func (i *instance) traceIn(span trace.Span) { i.View(func() { i.span = span }) }

// traced returns ctx in the trace of the call that the workload is started or stopped for.
func (i *instance) traced(ctx context.Context) context.Context {
	i.mu.Lock()
	defer i.mu.Unlock()
	return trace.ContextWithSpan(ctx, i.span)
}

// beginSpan begins the span of a step.
func (i *instance) beginSpan(ctx context.Context, name string, of subject, undo bool) (context.Context, trace.Span) {
	what := "step "
	if undo {
		what = "undo "
	}
	attributes := []attribute.KeyValue{tracing.Workload.String(i.ref.String())}
	switch of.scope {
	case eachVolume:
		attributes = append(attributes, tracing.Volume.String(cmp.Or(of.volume.Request.Source, of.name)))
	case eachService:
		attributes = append(attributes, tracing.Service.String(of.name))
	}
	return tracing.Span(ctx, what+name, attributes...)
}
