package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/pannier/pannier/internal/errcode"
)

// order is what an operator wants of an instance. It is carried out by the instance's
// own goroutine; gen is nil while nothing serves.
type order struct {
	do   func(ctx context.Context, i *instance, gen *generation) (next *generation, err error)
	done chan error
}

// Errors of orders.
var (
	// ErrNoSwap: what should run runs already.
	ErrNoSwap = errcode.FailedPrecondition.New("nothing to swap to")
	// ErrNoCopy: the copy that is asked for is not kept.
	ErrNoCopy = errcode.FailedPrecondition.New("no such copy of the plugin")
	// ErrPinned: an operator wants one copy and no other.
	ErrPinned = errcode.FailedPrecondition.New("the plugin is pinned")
)

// Swap lets what should run take over now: the highest allowed version of the plugin
// directory, even if it was refused before. It returns the status when callers have
// moved. Errors: ErrUnknown; ErrNoSwap where that runs already; why the new process
// could not take over, with callers still served by the old one.
func (s *Supervisor) Swap(ctx context.Context, name string) (Status, error) {
	return s.order(ctx, name, func(ctx context.Context, i *instance, gen *generation) (*generation, error) {
		i.rec.Refused = nil
		return i.settle(ctx, gen)
	})
}

// Rollback brings back what served before, and refuses what serves now until it
// changes. Errors: ErrUnknown; ErrNoCopy where nothing served before; ErrPinned.
func (s *Supervisor) Rollback(ctx context.Context, name string) (Status, error) {
	return s.order(ctx, name, func(ctx context.Context, i *instance, gen *generation) (*generation, error) {
		if i.rec.LastGood == "" || !s.store.has(i.rec.LastGood, i.name) {
			return nil, fmt.Errorf("%w: nothing served before that could be gone back to", ErrNoCopy)
		}
		if i.rec.Pinned != "" {
			return nil, fmt.Errorf("%w to sha256:%s: unpin it first: pannier plugin unpin %s", ErrPinned, i.rec.Pinned, i.name)
		}
		delete(i.rec.Refused, i.rec.LastGood)
		if gen != nil {
			i.rec.refuse(gen.sha, "rolled back by an operator")
		} else {
			i.rec.refuse(i.lastTried, "rolled back by an operator")
		}
		return i.settle(ctx, gen)
	})
}

// Pin keeps a plugin at one copy, whatever comes into the plugin directory: that with
// the sum sha, or what runs where sha is empty. Errors: ErrUnknown; ErrNoCopy; why the
// copy could not take over, and then nothing else is pinned than before.
func (s *Supervisor) Pin(ctx context.Context, name, sha string) (Status, error) {
	return s.order(ctx, name, func(ctx context.Context, i *instance, gen *generation) (*generation, error) {
		if sha == "" {
			if gen == nil {
				return nil, fmt.Errorf("%w: none serves now, so say which one: pannier plugin pin %s SHA256", ErrNoCopy, i.name)
			}
			sha = gen.sha
		}
		if err := i.keep(sha); err != nil {
			return nil, err
		}
		was := i.rec.Pinned
		i.rec.Pinned = sha
		delete(i.rec.Refused, sha)
		next, err := i.settleOrSame(ctx, gen)
		if err != nil && next == nil { // or the next host would start it
			i.rec.Pinned = was
			err = errors.Join(err, i.rec.save(s.dir))
			i.set("", "", i.copyRecord)
		}
		return next, err
	})
}

// Unpin lets what is in the plugin directory run again. Errors: ErrUnknown; why that
// could not take over. The plugin is unpinned all the same.
func (s *Supervisor) Unpin(ctx context.Context, name string) (Status, error) {
	return s.order(ctx, name, func(ctx context.Context, i *instance, gen *generation) (*generation, error) {
		i.rec.Pinned = ""
		return i.settleOrSame(ctx, gen)
	})
}

// keep makes sure that there is a copy with that sum: one that is kept, or one out of
// the plugin directory.
func (i *instance) keep(sha string) error {
	if i.sup.store.has(sha, i.name) {
		return nil
	}
	for _, f := range i.sup.files(i.name) {
		if got, err := i.sum(f.path); err != nil || got != sha {
			continue
		}
		_, unpin, err := i.sup.store.add(f.path, i.name, sha)
		if err == nil {
			unpin()
		}
		return err
	}
	return fmt.Errorf("%w: sha256:%s is neither in %s nor kept", ErrNoCopy, sha, i.sup.cfg.PluginDir)
}

// settle writes what an operator decided and lets what should run now take over.
func (i *instance) settle(ctx context.Context, gen *generation) (*generation, error) {
	if err := i.rec.save(i.sup.dir); err != nil {
		return nil, err
	}
	defer i.set("", "", i.copyRecord)
	if gen == nil {
		return nil, nil // the next start sees to it, and begins at once
	}
	next, err := i.replace(ctx, gen)
	if errors.Is(err, errSame) {
		return nil, fmt.Errorf("%w: %s runs already", ErrNoSwap, gen.describe())
	}
	return next, err
}

// settleOrSame is settle where it is as good that the right one runs already.
func (i *instance) settleOrSame(ctx context.Context, gen *generation) (*generation, error) {
	next, err := i.settle(ctx, gen)
	if errors.Is(err, ErrNoSwap) {
		return nil, nil
	}
	return next, err
}

// order carries an operator's wish to the instance and waits until it is done.
func (s *Supervisor) order(ctx context.Context, name string, do func(context.Context, *instance, *generation) (*generation, error)) (Status, error) {
	s.rescan()
	i := s.instance(name)
	if i == nil {
		return Status{}, s.unknown(name)
	}
	o := order{do: do, done: make(chan error, 1)}
	select {
	case i.orders <- o:
	case <-s.closing:
		return i.snapshot(), ErrClosed
	case <-ctx.Done():
		return i.snapshot(), context.Cause(ctx)
	}
	select {
	case err := <-o.done:
		if err != nil {
			err = fmt.Errorf("plugin %q: %w", name, err)
		}
		return i.snapshot(), err
	case <-s.closing:
		return i.snapshot(), ErrClosed
	case <-ctx.Done():
		return i.snapshot(), context.Cause(ctx)
	}
}

// Log is the path of the file that a plugin's processes print to. Errors: ErrUnknown.
func (s *Supervisor) Log(name string) (string, error) {
	i := s.instance(name)
	if i == nil {
		return "", s.unknown(name)
	}
	_, err := os.Stat(i.logPath)
	return i.logPath, err
}
