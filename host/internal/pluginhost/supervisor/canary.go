package supervisor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pannier/pannier/internal/errcode"
)

// ErrCanary says that there is no canary where one is needed, that there is one where none may be, or that none can
// be started.
var ErrCanary = errcode.FailedPrecondition.New("canary")

// canary is a generation that gets a part of the calls while another one serves.
type canary struct {
	gen   *generation
	src   source
	share int // in percent
	began time.Time
	from  uint64 // the number of the generation that served when it began
	base  tally  // the calls and failures of that generation until then

	lost     chan struct{} // closed when it must end, or is no longer watched
	why      error         // why it must end; valid once lost is closed
	unwatch  context.CancelFunc
	watching sync.WaitGroup
}

// takes says whether the next call goes to the canary. A pattern of the calls must not decide which of them do.
func (c *canary) takes() bool { return rand.IntN(100) < c.share }

// canaryReason is why the binary of a canary is refused. It is the reason for the next host too, which goes on with
// what served.
const canaryReason = "it is or was a canary that is not promoted"

// Canary is a generation that gets a part of the calls.
type Canary struct {
	Generation uint64
	Version    string
	SHA256     string
	PID        int
	StartedAt  time.Time // when it began to get calls
	Percent    int       // its part of the calls
	Users      int       // callers that hold it
	// Calls are those that it has answered, and FailedCalls how many of them failed (see Status).
	Calls, FailedCalls int
	// ServingCalls are those that the current generation has answered meanwhile, and ServingFailed how many of them
	// failed.
	ServingCalls, ServingFailed int
}

// snapshot describes a canary beside the generation that serves.
func (c *canary) snapshot(serving *generation) *Canary {
	s := &Canary{
		Generation: c.gen.number, Version: c.gen.version, SHA256: c.gen.sha, PID: c.gen.pid, StartedAt: c.began,
		Percent: c.share, Users: c.gen.userCount(),
	}
	s.Calls, s.FailedCalls = c.gen.outcomes.answered()
	beside := c.beside(serving)
	s.ServingCalls, s.ServingFailed = beside.Calls, beside.FailedCalls
	return s
}

// beside describes the generation that serves, with its calls since the canary began; empty once that is the canary.
func (c *canary) beside(serving *generation) Side {
	if serving == c.gen {
		return Side{}
	}
	s := serving.side()
	if serving.number == c.from { // else another one has taken over meanwhile
		s.Calls, s.FailedCalls = s.Calls-c.base.calls, s.FailedCalls-c.base.failed
	}
	return s
}

// Canary starts a process of the binary that Swap would let take over, also if the plugin is pinned, and gives it
// percent of the calls, 1 to 99, until Promote or Rollback. If it ends, is unhealthy, or fails more calls than the one
// that serves, it is ended. Its failed calls may be repeated (ErrReplaced). Errors: ErrUnknown; ErrCanary; ErrNoSwap
// if that binary serves; why the process did not come up.
func (s *Supervisor) Canary(ctx context.Context, name string, percent int) (Status, error) {
	return s.request(ctx, name, func(ctx context.Context, i *instance, gen *generation) (*generation, error) {
		if gen == nil {
			return nil, fmt.Errorf("%w: none can be started, because no process serves", ErrCanary)
		}
		if err := i.noCanary(); err != nil {
			return nil, err
		}
		return nil, i.startCanary(ctx, gen, percent)
	})
}

// Promote lets the canary serve, and moves the pin to it if the plugin is pinned. grace is that of Swap. Errors:
// ErrUnknown; ErrCanary.
func (s *Supervisor) Promote(ctx context.Context, name string, grace *time.Duration) (Status, error) {
	return s.request(ctx, name, func(ctx context.Context, i *instance, gen *generation) (*generation, error) {
		c := i.canary.Load()
		if c == nil {
			return nil, fmt.Errorf("%w: there is none: start one: pannier plugin swap -canary 10%% %s", ErrCanary, i.name)
		}
		return i.promote(ctx, gen, c, grace)
	})
}

// noCanary returns an error if there is a canary.
func (i *instance) noCanary() error {
	c := i.canary.Load()
	if c == nil {
		return nil
	}
	return fmt.Errorf("%w: %s is one: first run pannier plugin promote %s, or pannier plugin rollback %s", ErrCanary,
		c.gen.describe(), i.name, i.name)
}

func (i *instance) startCanary(ctx context.Context, gen *generation, percent int) error {
	was := i.rec
	i.rec.Pinned, i.rec.Refused = "", nil
	src, problems, err := i.candidate()
	i.rec.Pinned, i.rec.Refused = was.Pinned, was.Refused
	switch {
	case err != nil:
		return err
	case src.sha == gen.sha:
		return errors.Join(fmt.Errorf("%w: %s runs already", ErrNoSwap, gen.describe()), errors.Join(problems...))
	}
	i.use(src.sha)
	defer i.use(gen.sha)
	swap := Swap{At: time.Now().UTC(), From: gen.side(), To: Side{SHA256: src.sha}, Canary: percent}
	next, err := i.tryBeside(ctx, gen, src)
	if next != nil {
		swap.To = next.side()
	}
	if err == nil {
		next.record.Canary = percent
		i.rec.Refused = maps.Clone(i.rec.Refused)
		i.rec.refuse(next.sha, canaryReason)
		if err = i.rec.save(i.sup.dir); err != nil {
			i.rec.Refused = was.Refused
			err = errors.Join(err, i.end(ctx, next))
		}
	}
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		i.notSwapped(gen, swap, src, err)
		return err
	}
	c := &canary{gen: next, src: src, share: percent, began: time.Now().UTC(), from: gen.number, lost: make(chan struct{})}
	c.base.calls, c.base.failed = gen.outcomes.answered()
	next.outcomes.beside = gen.outcomes
	next.events = i.follow(ctx, next.conn, next.record, next.run.proc.Done())
	watch, unwatch := context.WithCancel(ctx)
	c.unwatch = unwatch
	c.watching.Go(func() {
		defer close(c.lost)
		c.why = i.watchCanary(watch, next)
	})
	copyRecord := i.copyRecord()
	i.set(EventCanary, fmt.Sprintf("%s gets %d%% of the calls, %s the others", next.describe(), percent, gen.describe()),
		func(s *Status) {
			copyRecord(s)
			i.canary.Store(c)
		})
	return nil
}

// watchCanary returns why a canary must end; nil if ctx ends.
func (i *instance) watchCanary(ctx context.Context, gen *generation) error {
	quiet := time.NewTimer(i.sup.silence)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-gen.run.proc.Done():
			return fmt.Errorf("the process ended: %s", gen.run.proc.Exit())
		case <-gen.overLimit:
			return gen.run.meter.why
		case <-gen.outcomes.changed:
			if why := gen.outcomes.degraded(); why != "" {
				return errors.New(why)
			}
		case h, ok := <-gen.health.health:
			switch {
			case !ok:
				return i.streamLost(ctx, gen)
			case !h.healthy:
				return fmt.Errorf("it is unhealthy: %s", h.message)
			}
			quiet.Reset(i.sup.silence)
		case <-quiet.C:
			return fmt.Errorf("it has sent no health report for %v", i.sup.silence)
		}
	}
}

// endCanary ends the canary beside gen, if there is one, and refuses its binary unless gen has it. Its calls are given
// up after grace (see drainLater), and may be repeated.
func (i *instance) endCanary(ctx context.Context, gen *generation, why string, grace *time.Duration) error {
	c := i.canary.Load()
	if c == nil {
		return nil
	}
	c.gen.retire()
	c.unwatch()
	c.watching.Wait()
	if c.why != nil {
		why = fmt.Sprintf("%s after it had become a canary for %d%% of the calls: %v",
			time.Since(c.began).Round(time.Millisecond), c.share, c.why)
	}
	c.gen.record.Canary = 0
	if c.gen.sha != gen.sha {
		i.rec.refuse(c.gen.sha, why)
	} else {
		delete(i.rec.Refused, gen.sha)
	}
	i.rec.swapped(Swap{
		At: time.Now().UTC(), From: c.beside(gen), To: c.gen.side(), Took: time.Since(c.began), Canary: c.share, Error: why,
	})
	i.holds(gen.identity)
	err := i.rec.save(i.sup.dir)
	i.drainLater(ctx, c.gen, grace, c.why != nil)
	copyRecord := i.copyRecord()
	i.set(EventCanaryEnded, fmt.Sprintf("%s gets no calls any more: %s", c.gen.describe(), why), func(s *Status) {
		copyRecord(s)
		i.canary.Store(nil) // whoever sees that there is none sees why
	})
	return err
}

// promote lets the canary serve instead of gen.
func (i *instance) promote(ctx context.Context, gen *generation, c *canary, grace *time.Duration) (*generation, error) {
	select {
	case <-c.lost:
		return nil, errors.Join(fmt.Errorf("%w: it has just been ended: %w", ErrCanary, c.why),
			i.endCanary(ctx, gen, "", grace))
	default:
	}
	next, was := c.gen, i.rec
	swap := Swap{At: time.Now().UTC(), From: c.beside(gen), To: next.side(), Canary: c.share}
	i.use(next.sha)
	i.serves(next.record, c.src)
	i.rec.Refused = maps.Clone(i.rec.Refused)
	delete(i.rec.Refused, next.sha)
	next.record.TookOver, next.record.Canary = swap.At, 0
	if i.rec.Pinned != "" {
		next.record.PinnedBefore, i.rec.Pinned = i.rec.Pinned, next.sha
	}
	if err := i.rec.save(i.sup.dir); err != nil {
		i.rec = was
		next.record.TookOver, next.record.Canary, next.record.PinnedBefore = time.Time{}, c.share, ""
		i.use(gen.sha)
		return nil, err
	}
	c.unwatch()
	c.watching.Wait()
	next.outcomes.follows(gen.outcomes.tallies())
	return i.moved(ctx, gen, next, swap, grace)
}

// endedWithHost records a canary of an earlier host, whose process has just been ended.
func (i *instance) endedWithHost(gen *generation, run *runRecord) {
	const why = "the agent was started again"
	i.rec.swapped(Swap{
		At: time.Now().UTC(), From: gen.side(), Canary: run.Canary, Error: why,
		To: Side{Generation: run.Number, Version: run.Version, SHA256: run.SHA256},
	})
	err := i.rec.save(i.sup.dir)
	i.set(EventCanaryEnded, fmt.Sprintf("generation %d (version %s) was a canary: %s", run.Number, run.Version,
		errorText(errors.Join(errors.New(why), err))), i.copyRecord())
}
