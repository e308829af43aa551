package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
)

var healthChecks = []*Check{
	{
		ID:    "health.first",
		Says:  "It reports its health within 10 s after a host attends it, and is healthy.",
		Fix:   "Let Health check only the plugin itself, and answer within 5 s. If something that a call needs is unreachable, that is the call's error.",
		after: configured,
		run: up(func(ctx context.Context, r *run, c *checking, p *process) error {
			res, err := p.attend(ctx, c, time.Hour)
			if err == nil && !res.GetHealthy() {
				err = fmt.Errorf("it is unhealthy: %s", res.GetMessage())
			}
			return err
		}),
	},
	{
		ID:    "host.attended",
		Says:  "It keeps running while a host attends it, even for longer than the orphan timeout.",
		Fix:   "Start the timeout at the end of the last Attend stream, as the SDK does.",
		after: append([]string{"health.first"}, configured...),
		run: up(func(ctx context.Context, r *run, c *checking, p *process) error {
			if _, err := p.attend(ctx, c, orphaned); err != nil {
				return err
			}
			if p.ended(2 * orphaned) {
				return fmt.Errorf("it ended (%s) while a host attended it", p.exit())
			}
			return nil
		}),
	},
	{
		ID:    "host.gone",
		Says:  "It ends by itself when no host has attended it for the orphan timeout.",
		Fix:   "Call the SDK's Main last in main, and keep no child that holds its files open. In another language: end when no Attend stream was open for orphan_timeout_ms.",
		after: append([]string{"health.first"}, configured...),
		run: up(func(ctx context.Context, r *run, c *checking, p *process) error {
			if _, err := p.attend(ctx, c, orphaned); err != nil {
				return err
			}
			began := time.Now()
			if err := p.conn.Close(); err != nil { // as the kernel does when a host dies
				return err
			}
			if !p.ended(orphaned + stopTime) {
				return fmt.Errorf("it still runs %v after its host disconnected; the orphan timeout was %v",
					time.Since(began).Round(time.Second), orphaned)
			}
			return nil
		}),
	},
}

// attend attends the plugin until the check is over, and returns the first health report.
func (p *process) attend(ctx context.Context, c *checking, orphan time.Duration) (*pluginv1.AttendResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	c.ends(cancel)
	stream, err := p.api.Attend(ctx, &pluginv1.AttendRequest{OrphanTimeoutMs: orphan.Milliseconds()})
	if err != nil {
		return nil, fmt.Errorf("attend: %w", err)
	}
	type answer struct {
		res *pluginv1.AttendResponse
		err error
	}
	first := make(chan answer, 1)
	go func() {
		res, err := stream.Recv()
		first <- answer{res, err}
	}()
	timer := time.NewTimer(callTime)
	defer timer.Stop()
	select {
	case a := <-first:
		if a.err != nil {
			return nil, fmt.Errorf("attend: %w", a.err)
		}
		return a.res, nil
	case <-timer.C:
		return nil, errors.New("attend: no health report within " + callTime.String())
	}
}
