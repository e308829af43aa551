package agent

import (
	"context"
	"time"

	"github.com/pannier/pannier/host/internal/system/tracing"
)

const (
	// flushPatience is how long the agent waits at its end until the collector has taken the spans.
	flushPatience = 2 * time.Second
	// heldFlushPatience is the same while an upgrade holds calls back, which has waited for the earlier ones before.
	heldFlushPatience = 50 * time.Millisecond
)

// openTraces begins to record traces, unless they are off. They are exported when everything else is closed.
func (a *agent) openTraces(ctx context.Context) (err error) {
	a.traces, err = tracing.Open(ctx, tracing.Config{
		Program: "pannier-agent", Version: a.version, Node: a.cfg.Name, Endpoint: a.cfg.TracesEndpoint,
		Log: a.log.Named("traces"),
	})
	if err == nil {
		a.flush = flushPatience
		a.closers.add(func() error { a.traces.Close(ctx, a.flush); return nil })
	}
	return err
}
