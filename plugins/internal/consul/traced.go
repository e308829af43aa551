package consul

import (
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/pannier/pannier/sdk"
)

// traced records each request as a span: its method, its path and the status of its answer.
type traced struct{ next http.RoundTripper }

func (t traced) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, span := sdk.Span(req.Context(), "consul "+req.Method, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attribute.String("url.path", req.URL.Path)))
	defer span.End()
	res, err := t.next.RoundTrip(req.WithContext(ctx))
	switch {
	case err != nil:
		span.SetStatus(codes.Error, "no answer")
	case res.StatusCode >= http.StatusBadRequest:
		span.SetStatus(codes.Error, http.StatusText(res.StatusCode))
		fallthrough
	default:
		span.SetAttributes(attribute.Int("http.response.status_code", res.StatusCode))
	}
	return res, err
}
