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
		Says:  "It tells its health as soon as a host attends it, within 10 s, and it is well.",
		Fix:   "Let Health look only at what is the plugin's own, and answer within 5 s. What a call needs and is away is that call's error.",
		after: configured,
		run: func(ctx context.Context, r *run, c *checking) error {
			p, err := r.up(ctx, c)
			if err != nil {
				return err
			}
			res, err := p.attend(ctx, c, time.Hour)
			if err == nil && !res.GetHealthy() {
				err = fmt.Errorf("it is unwell: %s", res.GetMessage())
			}
			return err
		},
	},
	{
		ID:    "host.attended",
		Says:  "It lives while a host attends it, longer than the orphan timeout too.",
		Fix:   "Count the timeout from the end of the last Attend stream; the SDK does.",
		after: append([]string{"health.first"}, configured...),
		run: func(ctx context.Context, r *run, c *checking) error {
			p, err := r.up(ctx, c)
			if err != nil {
				return err
			}
			if _, err := p.attend(ctx, c, orphaned); err != nil {
				return err
			}
			if p.ended(2 * orphaned) {
				return fmt.Errorf("it ended (%s) while a host attended it", p.exit())
			}
			return nil
		},
	},
	{
		ID:    "host.gone",
		Says:  "It ends by itself when no host has attended it for the orphan timeout.",
		Fix:   "Let main return when the SDK's Main does, and keep no goroutine or child that holds the process. In another language: end when no Attend stream was open for orphan_timeout_ms.",
		after: append([]string{"health.first"}, configured...),
		run: func(ctx context.Context, r *run, c *checking) error {
			p, err := r.up(ctx, c)
			if err != nil {
				return err
			}
			if _, err := p.attend(ctx, c, orphaned); err != nil {
				return err
			}
			began := time.Now()
			if err := p.conn.Close(); err != nil { // as the kernel does for a host that died
				return err
			}
			if !p.ended(orphaned + stopTime) {
				return fmt.Errorf("it still runs %v after its host went, which asked for %v", time.Since(began).Round(time.Second), orphaned)
			}
			return nil
		},
	},
}

// attend attends the process until the check is over, and returns the first health.
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
		return nil, errors.New("attend: no health within " + callTime.String())
	}
}
