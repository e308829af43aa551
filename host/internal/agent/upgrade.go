package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/system/handover"
	"github.com/pannier/pannier/internal/errcode"
	"github.com/pannier/pannier/internal/trusted"
)

const (
	// TryFlag of the agent's command is given to a program that is tried. Programs that cannot do so refuse it.
	TryFlag = "-try"
	// holdPause is how long calls are held back until those that are being answered have ended. Longer ones are waited
	// for without holding others back.
	holdPause = 150 * time.Millisecond
	// holdEvery is the pause between two attempts.
	holdEvery = 50 * time.Millisecond
	// holdPatience bounds the attempts.
	holdPatience = 2 * time.Minute
	// tryPatience and tryFactor times what this program has taken bound how long the next one may take to come up.
	tryPatience = 5 * time.Second
	tryFactor   = 3
	// yieldPatience bounds the transfer of the lead to another server.
	yieldPatience = 5 * time.Second
	// yieldInterval is the pause between two checks for it.
	yieldInterval = 10 * time.Millisecond
)

// errUpgrade refuses an upgrade. Nothing was changed.
var errUpgrade = errcode.FailedPrecondition.New("the agent cannot be upgraded")

// successor is the program that is to replace this one.
type successor struct {
	*handover.Successor
	outcome handover.Outcome
}

// upgrade starts the program that is now at this one's path in a process of its own. When that has read its
// configuration, Run goes on with it.
func (a *agent) upgrade(ctx context.Context) (handover.Outcome, error) {
	if a.cfg.Dev {
		return handover.Outcome{}, fmt.Errorf("%w: the plugins and drivers of a -dev agent end with it", errUpgrade)
	}
	if !a.upgrading.TryLock() {
		return handover.Outcome{}, fmt.Errorf("%w: an upgrade is under way", errUpgrade)
	}
	next, err := a.findSuccessor(ctx)
	if err != nil {
		a.upgrading.Unlock()
		return handover.Outcome{}, fmt.Errorf("%w: %w", errUpgrade, err)
	}
	outcome := next.outcome
	select {
	case a.next <- next:
		return outcome, nil
	case <-ctx.Done():
		next.End()
		a.upgrading.Unlock()
		return outcome, context.Cause(ctx)
	}
}

func (a *agent) findSuccessor(ctx context.Context) (*successor, error) {
	program, err := os.Executable() // the path that this program was started by, also when another file is there now
	if err != nil {
		return nil, fmt.Errorf("find the program: %w", err)
	}
	if err := trusted.File(program); err != nil {
		return nil, err
	}
	s, err := a.sockets.Propose(ctx, program, TryFlag, a.logs)
	if err != nil {
		return nil, err
	}
	if s.Hello.Ledger < command.Level {
		s.End()
		return nil, fmt.Errorf("%s is %s, which knows the ledger's commands up to level %d; this program, %s, may have written "+
			"some of level %d", program, s.Hello.Version, s.Hello.Ledger, a.version, command.Level)
	}
	return &successor{s, handover.Outcome{Attempt: rand.Text(), From: a.version, To: s.Hello.Version}}, nil
}

// replace executes the next program in this process, if it comes up, or else this one again. It returns nil if this
// program goes on, and an error if the agent has to end.
func (a *agent) replace(ctx context.Context, next *successor) error {
	defer next.End()
	began := time.Now()
	a.log.Info("the agent is upgraded", "from", next.outcome.From, "to", next.outcome.To)
	a.traces.Flush(ctx, flushPatience)
	a.told(a.manager.AllowSilence(upgradeSilence)) // until it is told again that the API is served
	if err := a.holdCalls(ctx); err != nil {
		a.sockets.Release()
		a.upgraded(next, err)
		a.upgrading.Unlock()
		a.told(a.manager.AllowSilence(0))
		return nil
	}
	held := time.Now()
	a.plugins.StopWithHost(false)
	a.stopPlugins.Store(false)
	a.flush = heldFlushPatience
	if err := a.closers.Close(); err != nil {
		a.log.Error("not everything could be closed", "error", err)
	}
	closed := time.Now()
	err := next.Try(ctx, tryPatience+tryFactor*a.opening)
	if err == nil {
		err = next.Same()
	}
	if ctx.Err() != nil {
		return nil // the agent is to stop, and is closed
	}
	a.upgraded(next, err)
	a.log.Info("the agent's calls were held back", "hold", held.Sub(began), "close", closed.Sub(held),
		"trial", time.Since(closed))
	if err == nil {
		err = a.sockets.Exec(ctx, next.Program, *a.outcome.Load(), a.manager.Environ()...)
		a.upgraded(next, err)
	}
	// The link leads to this program also when another file has its path.
	err = errors.Join(err, a.sockets.Exec(ctx, "/proc/self/exe", *a.outcome.Load(), a.manager.Environ()...))
	if ctx.Err() != nil {
		return nil // to stop, as above
	}
	return err
}

// holdCalls makes another server lead, and holds calls back when none is being answered.
func (a *agent) holdCalls(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, holdPatience)
	defer cancel()
	if a.yieldLead != nil {
		a.yieldLead(ctx)
	}
	for {
		pause, cancel := context.WithTimeout(ctx, holdPause)
		err := a.sockets.Hold(pause)
		cancel()
		if err == nil {
			return nil
		}
		a.sockets.Release()
		select {
		case <-time.After(holdEvery):
		case <-ctx.Done():
			return fmt.Errorf("it could not be done between two calls within %s: %w", holdPatience, err)
		}
	}
}

// upgraded records how an upgrade went.
func (a *agent) upgraded(next *successor, err error) {
	o := next.outcome
	if o.At = time.Now(); err != nil {
		o.Error = err.Error()
		a.log.Error("the agent was not upgraded", "to", o.To, "error", err)
	}
	a.outcome.Store(&o)
}

// try shows that this program comes up with the agent's data, until the agent kills it. It serves nobody.
func (a *agent) try(ctx context.Context, before *handover.Inheritance) error {
	a.log = a.log.NamedIntercept("trial")
	if err := before.Begin(ctx, handover.Hello{Version: a.version, Ledger: command.Level}); err != nil {
		return err
	}
	if err := a.open(ctx, a.role()); err != nil {
		return err // the process ends, and whatever it has started is found by the agent
	}
	if err := before.Up(); err != nil {
		return err
	}
	<-ctx.Done()
	return context.Cause(ctx)
}
