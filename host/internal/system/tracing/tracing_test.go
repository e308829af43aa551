package tracing

import (
	"context"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/types/known/timestamppb"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/test/lib/otlp"
)

// Neither calls nor plugins get a handler while traces are off, whatever else the environment says.
func TestOff(t *testing.T) {
	for name, env := range map[string]map[string]string{
		"nothing is set":   {"OTEL_SERVICE_NAME": "x"},
		"no exporter":      {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
		"the SDK is off":   {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"},
		"metrics only":     {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:1"},
		"an empty address": {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
	} {
		t.Run(name, func(t *testing.T) {
			for key, value := range env {
				t.Setenv(key, value)
			}
			off, err := Open(t.Context(), Config{Log: hclog.NewNullLogger()})
			if err != nil || off != nil {
				t.Fatalf("%v, %v", off, err)
			}
			if off.Connect() != nil || off.Server() != nil || off.Client() != nil {
				t.Error("there are handlers")
			}
			if ctx, end := off.Begin(t.Context(), "x"); ctx != t.Context() {
				t.Error("the context is another one")
			} else {
				end(nil)
			}
			off.Record("p", []*pluginv1.Span{{}})
			off.Flush(t.Context(), time.Minute)
			off.Close(t.Context(), time.Minute)
		})
	}
}

// What is not a span is dropped, and its plugin cannot pass for another one.
func TestSpansOfAHostilePlugin(t *testing.T) {
	c := otlp.New(t, nil)
	tracer, err := Open(t.Context(),
		Config{Program: "pannier-agent", Node: "a", Endpoint: c.URL, Log: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	id, span, now := []byte("0123456789abcdef"), []byte("01234567"), timestamppb.Now()
	tracer.Record("bad", []*pluginv1.Span{
		{},
		{Name: "no trace", SpanId: span, ParentId: span, Began: now, Ended: now},
		{Name: "a long id", TraceId: append(id, 1), SpanId: span, ParentId: span, Began: now, Ended: now},
		{Name: "no parent", TraceId: id, SpanId: span, Began: now, Ended: now},
		{Name: "no end", TraceId: id, SpanId: span, ParentId: span, Began: now, Ended: &timestamppb.Timestamp{Nanos: -1}},
		{
			Name: "n", TraceId: id, SpanId: span, ParentId: span, Began: now, Ended: now,
			Attributes: map[string]string{"service.name": "pannier-agent", "pannier.plugin": "good"},
		},
	})
	tracer.Close(t.Context(), 10*time.Second)
	if len(c.Spans()) != 1 {
		t.Fatalf("the collector has %v", c.Spans())
	}
	if s := c.Spans()[0]; s.Program != "bad" || s.Attributes["pannier.plugin"] != "bad" || s.Attributes["host.name"] != "a" {
		t.Errorf("the collector has %v", s)
	}
}

// The end of a program is not held up by a collector that hangs.
func TestCloseIsBounded(t *testing.T) {
	c := otlp.New(t, nil)
	c.Hang()
	tracer, err := Open(t.Context(), Config{Program: "p", Endpoint: c.URL, Log: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	_, end := tracer.Begin(context.Background(), "x")
	end(nil)
	for _, do := range []func(context.Context, time.Duration){tracer.Flush, tracer.Close} {
		began := time.Now()
		if do(t.Context(), 50*time.Millisecond); time.Since(began) > 5*time.Second {
			t.Errorf("it took %s", time.Since(began))
		}
	}
}
