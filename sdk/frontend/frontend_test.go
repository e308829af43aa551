package frontend_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/frontend"
	"github.com/pannier/pannier/sdk/plugintest"
)

// door returns from Serve as serve says, and from Ready with an error.
type door struct {
	serve func(ctx context.Context) error
	ready error
}

func (d door) Serve(ctx context.Context, _ frontend.Host) error { return d.serve(ctx) }

func (d door) Ready(context.Context, frontend.Host) error { return d.ready }

func TestServeThatReturnsEarly(t *testing.T) {
	for name, tc := range map[string]struct {
		serve func(ctx context.Context) error
		says  string
	}{
		"with an error": {func(context.Context) error { return errors.New("no socket") }, "no socket"},
		"without one":   {func(context.Context) error { return nil }, "Serve has returned"},
		"by a panic":    {func(context.Context) error { panic("oops") }, "panicked in Serve"},
	} {
		t.Run(name, func(t *testing.T) {
			p := plugintest.Serve(t, frontend.Plugin(door{serve: tc.serve}))
			if err := p.Health(t.Context()); err != nil {
				t.Errorf("before Serve: %v", err)
			}
			client := frontend.NewClient(p.Conn)
			if err := client.Serve(t.Context()); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for {
				err := p.Health(ctx)
				if err != nil && strings.Contains(err.Error(), tc.says) {
					break
				}
				if ctx.Err() != nil {
					t.Fatalf("afterwards: %v", err)
				}
			}
		})
	}
}

func TestDrain(t *testing.T) {
	served := make(chan struct{})
	p := plugintest.Serve(t, frontend.Plugin(door{serve: func(ctx context.Context) error {
		close(served) // a second call would panic
		<-ctx.Done()
		return errors.New("a connection was lost") // which nobody can do anything about
	}}))
	client := frontend.NewClient(p.Conn)
	for range 2 {
		if err := client.Serve(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	<-served
	for range 2 {
		if err := client.Drain(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := client.Serve(t.Context()); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("serve after Drain: %v", err)
	}
	if err := p.Health(t.Context()); err != nil {
		t.Errorf("a drained process: %v", err)
	}
}

func TestReady(t *testing.T) {
	for _, tc := range []struct {
		err  error
		code codes.Code
	}{
		{nil, codes.OK},
		{errors.New("no"), codes.FailedPrecondition},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		{status.Error(codes.Aborted, "no"), codes.Aborted},
	} {
		p := plugintest.Serve(t, frontend.Plugin(door{ready: tc.err}))
		if err := frontend.NewClient(p.Conn).Ready(t.Context()); status.Code(err) != tc.code {
			t.Errorf("%v: got %v, want %v", tc.err, err, tc.code)
		}
	}
}
