package supervisor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/internal/errcode"
)

// ErrCanary means that there is no canary where one is needed, that there is one where none may be, or that none can be
// started.
var ErrCanary = errcode.FailedPrecondition.New("canary")

// canary is a generation that gets a part of the calls while another one serves.
type canary struct {
	gen   *generation
	src   managed.Source
	share int // in percent
	began time.Time
	from  uint64 // the number of the generation that served when it began
	base  tally  // the calls and failures of that generation until then

	lost     chan struct{} // closed when it must end, or is no longer watched
	why      error         // why it must end; valid once lost is closed
	unwatch  context.CancelFunc
	watching sync.WaitGroup
}

// takes reports whether the next call goes to the canary. A pattern of the calls must not decide which of them do.
func (c *canary) takes() bool { return rand.IntN(100) < c.share }

// canaryReason is why the binary of a canary is refused. It is the reason for the next host too, which goes on with
// what served.
const canaryReason = "it is or was a canary that is not promoted"

// Canary is a generation that gets a part of the calls.
type Canary struct {
	Side
	PID       int
	StartedAt time.Time // when it began to get calls
	Percent   int       // its part of the calls
	Users     int       // callers that hold it
	Serving   Side      // the current generation, with what it has answered meanwhile
}

// snapshot describes a canary beside the generation that serves.
func (c *canary) snapshot(serving *generation) *Canary {
	return &Canary{
		Side: c.gen.Side(), PID: c.gen.PID(), StartedAt: c.began, Percent: c.share, Users: c.gen.Count(),
		Serving: c.beside(serving),
	}
}

// beside describes the generation that serves, with its calls since the canary began; empty once that is the canary.
func (c *canary) beside(serving *generation) Side {
	if serving == c.gen {
		return Side{}
	}
	s := serving.Side()
	if serving.Run.Number == c.from { // else another one has taken over meanwhile
		s.Calls, s.FailedCalls = s.Calls-c.base.calls, s.FailedCalls-c.base.failed
	}
	return s
}

// Canary starts a process of the binary that Swap would let take over, also if the plugin is pinned, and gives it
// percent of the calls, 1 to 99, until Promote or Rollback. If it ends, is unhealthy, or fails more calls than the one
// that serves, it is ended. Its failed calls may be repeated (ErrReplaced). Errors: ErrUnknown; ErrCanary; ErrNoSwap
// if that binary serves; why the process did not come up.
func (s *Supervisor) Canary(ctx context.Context, name string, percent int) (Status, error) {
	return s.request(ctx, name, func(ctx context.Context, i *instance, gen *generation) (*managed.Process, error) {
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
	return s.request(ctx, name, func(ctx context.Context, i *instance, gen *generation) (*managed.Process, error) {
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
	src, problems, err := i.binaries.candidate()
	i.rec.Pinned, i.rec.Refused = was.Pinned, was.Refused
	switch {
	case err != nil:
		return err
	case src.SHA256 == gen.Run.SHA256:
		return errors.Join(fmt.Errorf("%w: %s runs already", ErrNoSwap, gen.describe()), errors.Join(problems...))
	}
	i.use(src.SHA256)
	defer i.use(gen.Run.SHA256)
	swap := Swap{At: time.Now().UTC(), From: gen.Side(), To: Side{SHA256: src.SHA256}, Overlap: true, Canary: percent}
	p, err := i.procs.Try(ctx, gen.Process, src)
	if err == nil {
		p.Run.Canary, swap.To = percent, of(p).Side()
		i.rec.Refuse(src.SHA256, canaryReason)
		if err = i.rec.save(i.sup.dir); err != nil {
			i.rec.Refused = was.Refused
			err = errors.Join(err, i.procs.End(ctx, p))
		}
	}
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		i.procs.NotSwapped(gen.Process, swap, src, err)
		return err
	}
	next := of(p)
	c := &canary{
		gen: next, src: src, share: percent, began: time.Now().UTC(), from: gen.Run.Number, lost: make(chan struct{}),
	}
	c.base.calls, c.base.failed = gen.Calls()
	next.outcomes.beside, next.isCanary = gen.outcomes, true
	next.events = i.follow(ctx, next.conn, next.Run, next.Done())
	watch, unwatch := context.WithCancel(ctx)
	c.unwatch = unwatch
	c.watching.Go(func() {
		c.why = p.Watch(watch)
		close(c.lost)
		if c.why != nil { // watch ends when somebody else ends it meanwhile
			_ = i.procs.Do(watch, func(ctx context.Context, p *managed.Process) (*managed.Process, error) {
				return nil, i.endCanary(ctx, of(p), "", nil)
			})
		}
	})
	copyRecord := i.copyRecord()
	i.set(EventCanary, fmt.Sprintf("%s gets %d%% of the calls, %s the others", next.describe(), percent, gen.describe()),
		func(s *Status) {
			copyRecord(s)
			i.canary.Store(c)
		})
	return nil
}

// endCanary ends the canary beside gen, if there is one, and refuses its binary unless gen has it. Its calls are given
// up after grace (see drainLater), and may be repeated.
func (i *instance) endCanary(ctx context.Context, gen *generation, why string, grace *time.Duration) error {
	c := i.canary.Load()
	if c == nil {
		return nil
	}
	c.gen.Retire()
	c.unwatch()
	c.watching.Wait()
	if c.why != nil {
		why = fmt.Sprintf("%s after it had become a canary for %d%% of the calls: %v",
			time.Since(c.began).Round(time.Millisecond), c.share, c.why)
	}
	c.gen.Run.Canary = 0
	if c.gen.Run.SHA256 != gen.Run.SHA256 {
		i.rec.Refuse(c.gen.Run.SHA256, why)
	} else {
		delete(i.rec.Refused, gen.Run.SHA256)
	}
	i.rec.Swapped(Swap{
		At: time.Now().UTC(), From: c.beside(gen), To: c.gen.Side(), Took: time.Since(c.began), Canary: c.share, Error: why,
	})
	i.holds(gen.identity)
	err := i.rec.save(i.sup.dir)
	if c.why != nil {
		c.gen.unhealthySince = time.Now()
	}
	i.procs.Retire(ctx, c.gen.Process, grace)
	copyRecord := i.copyRecord()
	i.set(EventCanaryEnded, fmt.Sprintf("%s gets no calls any more: %s", c.gen.describe(), why), func(s *Status) {
		copyRecord(s)
		i.canary.Store(nil) // whoever sees that there is none sees why
	})
	return err
}

// promote lets the canary serve instead of gen.
func (i *instance) promote(ctx context.Context, gen *generation, c *canary, grace *time.Duration,
) (*managed.Process, error) {
	select {
	case <-c.lost:
		return nil, errors.Join(fmt.Errorf("%w: it has just been ended: %w", ErrCanary, c.why),
			i.endCanary(ctx, gen, "", grace))
	default:
	}
	next, was := c.gen, i.rec
	if calls, _ := next.Calls(); calls == 0 {
		return nil, fmt.Errorf("%w: it has answered no call yet: wait until it has, or let the file take over without: pannier "+
			"plugin rollback %[2]s && pannier plugin unpin %[2]s && pannier plugin swap %[2]s", ErrCanary, i.name)
	}
	i.use(next.Run.SHA256)
	i.rec.Refused = maps.Clone(i.rec.Refused)
	delete(i.rec.Refused, next.Run.SHA256)
	next.Run.Canary = 0
	if i.rec.Pinned != "" {
		next.Run.PinnedBefore, i.rec.Pinned = i.rec.Pinned, next.Run.SHA256
	}
	c.unwatch()
	c.watching.Wait()
	next.isCanary = false
	next.outcomes.follows(gen.outcomes.tallies())
	swap := Swap{At: time.Now().UTC(), From: c.beside(gen), To: next.Side(), Overlap: true, Canary: c.share}
	err := i.procs.Promote(ctx, gen.Process, next.Process, c.src, &swap, grace)
	if err != nil && !errors.Is(err, managed.ErrNotSaved) { // it has ended
		i.rec.Pinned, i.rec.Refused = was.Pinned, was.Refused
		i.use(gen.Run.SHA256)
		i.canary.Store(nil)
		return nil, err
	}
	return next.Process, err
}

// endedWithHost records a canary of an earlier host, whose process has just been ended.
func (i *instance) endedWithHost(gen *generation, run *managed.Run) {
	const why = "the agent was started again"
	i.rec.Swapped(Swap{
		At: time.Now().UTC(), From: gen.Side(), Canary: run.Canary, Error: why,
		To: Side{Generation: run.Number, Version: run.Version, SHA256: run.SHA256},
	})
	run.Canary = 0
	err := i.rec.save(i.sup.dir)
	i.set(EventCanaryEnded, fmt.Sprintf("generation %d (version %s) was a canary: %s", run.Number, run.Version,
		errorText(errors.Join(errors.New(why), err))), i.copyRecord())
}
