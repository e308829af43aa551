package sdk

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.opentelemetry.io/otel/trace"
)

// slogTo returns a logger of log/slog that writes the lines that Logger writes.
func slogTo(w io.Writer, level hclog.Level) *slog.Logger {
	return slog.New(inTrace{slog.NewJSONHandler(w, &slog.HandlerOptions{
		Level: slog.Level((level - hclog.Info) * 4), // both are evenly spaced, and Info is 0 in slog
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) > 0 {
				return a
			}
			switch level, isLevel := a.Value.Any().(slog.Level); {
			case a.Key == slog.LevelKey && isLevel:
				return slog.String("@level", levelName(level))
			case a.Key == slog.TimeKey && a.Value.Kind() == slog.KindTime:
				return slog.String("@timestamp", a.Value.Time().Format(time.RFC3339Nano))
			case a.Key == slog.MessageKey:
				a.Key = "@message"
			}
			return a
		},
	})})
}

// inTrace adds to an entry which trace its context is in.
type inTrace struct{ slog.Handler }

// Handle implements slog.Handler.
func (h inTrace) Handle(ctx context.Context, r slog.Record) error {
	if in := trace.SpanContextFromContext(ctx); in.IsValid() {
		r.AddAttrs(slog.String("trace_id", in.TraceID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h inTrace) WithAttrs(attrs []slog.Attr) slog.Handler {
	return inTrace{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h inTrace) WithGroup(name string) slog.Handler { return inTrace{h.Handler.WithGroup(name)} }

// levelName is the host's name of the level, or of the next less severe one that it has.
func levelName(l slog.Level) string {
	switch {
	case l < slog.LevelDebug:
		return "trace"
	case l < slog.LevelInfo:
		return "debug"
	case l < slog.LevelWarn:
		return "info"
	case l < slog.LevelError:
		return "warn"
	default:
		return "error"
	}
}
