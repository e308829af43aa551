package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/sdk/wire"
)

var stopChecks = []*Check{
	{
		ID:    "stop.exit",
		Says:  "After Stop it ends within 10 s with exit code 0.",
		Fix:   "Let Close return nil in time. In another language: refuse new calls, finish those in flight, exit with 0.",
		after: configured,
		run: func(ctx context.Context, r *run, c *checking) error {
			p, err := r.stopped(ctx, c)
			if err == nil && p.cmd.ProcessState.ExitCode() != 0 {
				err = fmt.Errorf("it ended with %s%s", p.exit(), p.lastWords())
			}
			return err
		},
	},
	{
		ID:    "stop.nothing-left",
		Says:  "After it has ended, none of its children runs, and its socket is gone.",
		Fix:   "End everything that you start in Close, and leave nothing in the directory of the socket (PLUGIN_UNIX_SOCKET_DIR).",
		after: append([]string{"stop.exit"}, configured...),
		run: func(ctx context.Context, r *run, c *checking) error {
			p, err := r.stopped(ctx, c)
			if err != nil {
				return err
			}
			if left := p.family(); len(left) > 0 {
				name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", left[0])) // it may have ended
				return fmt.Errorf("%d of its processes still run, such as %d (%.20q)", len(left), left[0], name)
			}
			left, err := filepath.Glob(filepath.Join(p.socket, "*"))
			if err == nil && len(left) > 0 {
				err = fmt.Errorf("it leaves %q in the directory of its socket", filepath.Base(left[0]))
			}
			return err
		},
	},
	{
		ID:    "stop.in-flight",
		Says:  "Stopped during a call, it ends after the call has its answer, and not before.",
		Fix:   "Finish the calls in flight before the process ends (grpc's GracefulStop; the SDK does this). A swap does not move calls to the new process.",
		after: append([]string{"stop.exit"}, configured...),
		run:   checkInFlight,
	},
	{
		ID:    "stop.streams",
		Says:  "Stopped while a stream is open, it ends the stream and itself within 10 s.",
		Fix:   "Return from a streaming method when its context ends.",
		after: append([]string{"stop.exit"}, configured...),
		run:   checkStopStreams,
	},
	{
		ID:    "stop.signal",
		Says:  "SIGTERM ends it as Stop does, within 10 s.",
		Fix:   "Leave SIGTERM to the SDK: do not use signal.Notify or signal.Ignore for it.",
		after: append([]string{"stop.exit"}, configured...),
		run: up(func(ctx context.Context, r *run, c *checking, p *process) error {
			if err := syscall.Kill(p.pid(), syscall.SIGTERM); err != nil {
				return fmt.Errorf("send SIGTERM: %w", err)
			}
			if !p.ended(stopTime) {
				return fmt.Errorf("it still runs %v after SIGTERM", stopTime)
			}
			return nil
		}),
	},
}

// stopped returns a process that was configured, called once and told to stop.
func (r *run) stopped(ctx context.Context, c *checking) (*process, error) {
	p, err := r.up(ctx, c)
	if err != nil {
		return nil, err
	}
	r.kind.asked(ctx, p.conn, r.asked())
	if err := p.stop(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

func checkStopStreams(ctx context.Context, r *run, c *checking) error {
	if r.kind.stream == nil {
		return skip("the kind has no stream")
	}
	p, err := r.up(ctx, c)
	if err != nil {
		return err
	}
	streamCtx, cancel := context.WithCancel(ctx)
	opened, closed := make(chan struct{}), make(chan struct{})
	var ended error // the stream's error; valid once closed is closed
	go func() {
		defer close(closed)
		ended = r.kind.stream(streamCtx, p.conn, r.asked(), sync.OnceFunc(func() { close(opened) }))
	}()
	defer func() {
		cancel()
		<-closed
	}()
	timer := time.NewTimer(callTime)
	defer timer.Stop()
	select {
	case <-opened:
	case <-closed:
		return fmt.Errorf("the stream ended: %w", orSuccess(ended))
	case <-timer.C:
		return errors.New("nothing was received on the stream")
	}
	return p.stop(ctx)
}

func checkInFlight(ctx context.Context, r *run, c *checking) error {
	if r.kind.final == nil {
		return skip("the kind's calls do not wait for a backend")
	}
	// Before the process is started: the check's cleanups run in reverse order.
	socket := r.cfg.Driver.Endpoint
	if r.report.Kind != storage.Kind {
		var err error
		if _, socket, err = r.echo(c, r.secret); err != nil {
			return err
		}
	} else if socket == "" {
		return skip(r.kind.missing(&r.cfg))
	}
	slow, err := r.hold(c, socket)
	if err != nil {
		return err
	}
	p, err := r.up(ctx, c)
	if err != nil {
		return err
	}
	callCtx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	answer := make(chan error, 1)
	go func() { answer <- r.kind.final(callCtx, p.conn, slow.backend) }()
	select {
	case <-slow.came:
	case err := <-answer:
		return skip(fmt.Sprintf("its call does not wait for the backend: %.100s", outcome(err)))
	}
	hangUp, err := wire.Stop(callCtx, p.conn)
	if err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	if p.ended(underway) {
		return fmt.Errorf("it ended (%s) while a call waited for its answer", p.exit())
	}
	slow.release()
	switch err := <-answer; status.Code(err) {
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded, codes.Unknown:
		return fmt.Errorf("the call was cut: %w", err)
	}
	if hangUp {
		_ = p.conn.Close()
	}
	if !p.ended(stopTime) {
		return fmt.Errorf("it still runs %v after its last call", stopTime)
	}
	return nil
}
