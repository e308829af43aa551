package sdk

import (
	"io"
	"log/slog"
	"time"

	"github.com/hashicorp/go-hclog"
)

// slogTo returns a logger of log/slog that writes the lines that Logger writes.
func slogTo(w io.Writer, level hclog.Level) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{
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
	}))
}

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
