package sdk

import (
	"context"
	"fmt"
	"time"
)

const (
	healthInterval = 5 * time.Second  // between two questions to a HealthReporter, and its time to answer
	healthRepeat   = 25 * time.Second // a health that did not change is sent again after this; plugin.proto promises 30 s
)

// healthCheck asks an implementation how it is. One that does not heed its
// context is reported, not waited for, and not asked again before it answers.
type healthCheck struct {
	impl    any
	pending chan string // the answer of a question that is still open
}

// run returns why the implementation is unwell, or nothing.
func (c *healthCheck) run(ctx context.Context) string {
	h, ok := c.impl.(HealthReporter)
	if !ok {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, healthInterval)
	defer cancel()
	if c.pending == nil {
		answer := make(chan string, 1)
		c.pending = answer
		go func() { answer <- askHealth(ctx, h) }()
	}
	select {
	case message := <-c.pending:
		c.pending = nil
		return message
	case <-ctx.Done():
		return "the health check did not answer in " + healthInterval.String()
	}
}

func askHealth(ctx context.Context, h HealthReporter) (message string) {
	defer func() {
		if v := recover(); v != nil {
			message = fmt.Sprintf("the health check panicked: %v", v)
		}
	}()
	err := h.Health(ctx)
	switch {
	case err == nil:
		return ""
	case err.Error() == "":
		return "unhealthy"
	default:
		return err.Error()
	}
}
