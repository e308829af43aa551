package conformance

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var worked = append([]string{"work.whole"}, configured...)

var workChecks = []*Check{
	{
		ID:    "work.whole",
		Says:  "With a real backend all calls of its kind's work succeed.",
		Fix:   "See the reported call and its error.",
		after: configured,
		run: func(ctx context.Context, r *run, c *checking) error {
			return r.work(ctx, c, func(p *process, steps []step) error {
				for _, s := range steps {
					if _, err := s.try(ctx, p.conn); err != nil {
						return err
					}
				}
				return nil
			})
		},
	},
	{
		ID:    "work.repeat",
		Says:  "Every call can be repeated: the second one succeeds too, with the same answer.",
		Fix:   "First check whether the requested state exists already. A host repeats a call whose answer it has not received.",
		after: worked,
		run: func(ctx context.Context, r *run, c *checking) error {
			return r.work(ctx, c, func(p *process, steps []step) error {
				for _, s := range steps {
					if err := s.twice(ctx, p.conn, p.conn); err != nil {
						return err
					}
				}
				return nil
			})
		},
	},
	{
		ID:    "work.order",
		Says:  "Removing something that was never made succeeds, or fails with NotFound.",
		Fix:   "Return nil if there is nothing to remove: a host that does not know whether a call succeeded makes the opposite call.",
		after: worked,
		run: func(ctx context.Context, r *run, c *checking) error {
			return r.work(ctx, c, func(p *process, steps []step) error {
				for _, s := range steps {
					if !s.base && !s.undo {
						continue
					}
					if _, err := s.try(ctx, p.conn); err != nil && (s.base || status.Code(err) != codes.NotFound) {
						return fmt.Errorf("before anything was made: %w", err)
					}
				}
				return nil
			})
		},
	},
	{
		ID:    "work.refuse",
		Says:  "Impossible requests are refused with the code that the kind's package documents.",
		Fix:   "Return status.Error with that code. A host uses it to decide what to do next.",
		after: worked,
		run: func(ctx context.Context, r *run, c *checking) error {
			if len(r.kind.refusals) == 0 {
				return skip("the kind has no request that every backend refuses")
			}
			p, err := r.up(ctx, c)
			if err != nil {
				return err
			}
			for _, refusal := range r.kind.refusals {
				callCtx, cancel := context.WithTimeout(ctx, callTime)
				err := refusal.call(callCtx, r, p.conn)
				cancel()
				if status.Code(err) != refusal.code {
					return fmt.Errorf("%s: got %w, want %v", refusal.what, orSuccess(err), refusal.code)
				}
			}
			return nil
		},
	},
	{
		ID:    "work.killed",
		Says:  "If it is killed during any call, a new process completes that call and all that follow.",
		Fix:   "Keep nothing in memory that a later call needs, and let every call continue from a half-done state.",
		after: worked,
		run:   checkWorkKilled,
	},
	{
		ID:    "work.generations",
		Says:  "Two processes that run at the same time can share the work, call by call, and repeat each other's calls.",
		Fix:   "Keep nothing in memory that another process would need: during a swap both are called.",
		after: worked,
		run: func(ctx context.Context, r *run, c *checking) error {
			other, err := r.up(ctx, c)
			if err != nil {
				return err
			}
			return r.work(ctx, c, func(p *process, steps []step) error {
				conns := [2]grpc.ClientConnInterface{p.conn, other.conn}
				for i, s := range steps {
					if err := s.twice(ctx, conns[i%2], conns[(i+1)%2]); err != nil {
						return err
					}
				}
				return nil
			})
		},
	},
}

// work lets do run a job's steps with a process. If the job fails, another process removes what is left.
func (r *run) work(ctx context.Context, c *checking, do func(*process, []step) error) error {
	if why := r.kind.missing(&r.cfg); why != "" {
		return skip(why)
	}
	p, err := r.up(ctx, c)
	if err != nil {
		return err
	}
	name := c.name() + "-" + uuid()[:8]
	steps, err := r.kind.job(ctx, r, p.conn, name)
	if err != nil {
		return err
	}
	err = do(p, slices.DeleteFunc(slices.Clone(steps), func(s step) bool { return s.tidy }))
	if err == nil {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	cleaner, upErr := r.up(ctx, c)
	if upErr != nil {
		return err
	}
	for _, s := range steps {
		if !s.undo && !s.base && !s.tidy { // the answer of an interrupted base step is needed to undo it
			continue
		}
		if err := s.again(ctx, cleaner.conn); err != nil && status.Code(err) != codes.NotFound {
			r.leave("%s: %v", name, err)
		}
	}
	return err
}

// try makes the call of a step.
func (s step) try(ctx context.Context, conn grpc.ClientConnInterface) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	answer, err := s.do(ctx, conn)
	if err != nil {
		return "", fmt.Errorf("%s: %w", s.name, err)
	}
	return answer, nil
}

// again is try for a call that another process may just be making: like a host, it retries the errors that can be
// retried.
func (s step) again(ctx context.Context, conn grpc.ClientConnInterface) error {
	return insist(ctx, func(ctx context.Context) error {
		_, err := s.try(ctx, conn)
		return err
	})
}

// twice makes a call and repeats it, possibly with another process.
func (s step) twice(ctx context.Context, first, second grpc.ClientConnInterface) error {
	answer, err := s.try(ctx, first)
	if err != nil {
		return err
	}
	again, err := s.try(ctx, second)
	if err != nil {
		return fmt.Errorf("the second time: %w", err)
	}
	if err := same("the first time", answer, "the second time", again); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return nil
}

func checkWorkKilled(ctx context.Context, r *run, c *checking) error {
	return r.work(ctx, c, func(p *process, steps []step) error {
		for i, s := range steps {
			called := make(chan struct{})
			go func() {
				defer close(called)
				_, _ = s.try(ctx, p.conn) // it may fail at any point
			}()
			time.Sleep(time.Duration(i%4) * time.Millisecond)
			if err := p.die(ctx); err != nil {
				return err
			}
			<-called
			next, err := r.up(ctx, c)
			if err != nil {
				return fmt.Errorf("after a kill in %s: %w", s.name, err)
			}
			if err := s.again(ctx, next.conn); err != nil {
				return fmt.Errorf("after a kill: %w", err)
			}
			p = next
		}
		return nil
	})
}

// orSuccess returns err, or an error that says "success" if err is nil.
func orSuccess(err error) error {
	if err == nil {
		return fmt.Errorf("success")
	}
	return err
}
