package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/internal/errcode"
)

// Errors of an operator's requests.
var (
	// ErrNoSwap means that the binary that should run runs already.
	ErrNoSwap = errcode.FailedPrecondition.New("nothing to swap to")
	// ErrNoCopy means that the requested copy is not kept.
	ErrNoCopy = errcode.FailedPrecondition.New("no such copy of the plugin")
	// ErrPinned means that an operator has pinned the plugin to one copy.
	ErrPinned = errcode.FailedPrecondition.New("the plugin is pinned")
)

// Swap lets the binary that should run take over now: the highest allowed version in the plugin directory, even if it
// or its configuration was refused before; with sha, of the refused ones only that. The calls of the old process are
// given up after grace; nil: after 5 minutes, or 10 seconds if it is unhealthy or does not answer. It returns the
// status when the file's binary serves, also if it did before: the host may have seen the file first. Errors:
// ErrUnknown; ErrNoSwap if what serves goes on, since it is pinned or there is no file that can run; ErrCanary if there
// is a canary; why the new process did not come up or could not take over, in which case the old one still serves.
func (s *Supervisor) Swap(ctx context.Context, name, sha string, grace *time.Duration) (Status, error) {
	return s.requestUp(ctx, name, func(ctx context.Context, i *instance, gen *generation) (*managed.Process, error) {
		if err := i.noCanary(); err != nil {
			return nil, err
		}
		i.rec.Refused = maps.Clone(i.rec.Refused)
		maps.DeleteFunc(i.rec.Refused, func(other, _ string) bool { return sha == "" || sha == other })
		clear(i.unfit)
		next, err := i.settle(ctx, gen, grace)
		if errors.Is(err, ErrNoSwap) {
			src, problems, _ := i.binaries.candidate()
			if src.Path != "" && len(problems) == 0 || gen.Run.SHA256 == sha {
				return nil, nil
			}
			err = errors.Join(append([]error{err}, problems...)...)
		}
		return next, err
	})
}

// Restart lets a new process of the binary that serves take over, as Swap does for another binary. A plugin that has
// no process is started at once. Errors: ErrUnknown; why the new process could not take over, in which case the old
// one still serves.
func (s *Supervisor) Restart(ctx context.Context, name string, grace *time.Duration) (Status, error) {
	return s.requestUp(ctx, name, func(ctx context.Context, i *instance, gen *generation) (*managed.Process, error) {
		if gen == nil {
			return nil, nil
		}
		i.use(gen.Run.SHA256)
		return i.procs.SwapTo(ctx, gen.Process, managed.Source{SHA256: gen.Run.SHA256}, grace)
	})
}

// rolledBack is why a binary is refused after Rollback.
const rolledBack = "rolled back by an operator"

// Rollback goes back to the copy that served before, or to the kept one that to names by its version or the first 6
// digits of its checksum. What would be preferred to it is refused until its file changes. grace is that of Swap.
// While there is a canary, Rollback only ends that. Errors: ErrUnknown; ErrNoCopy if there is no such copy; ErrNoSwap
// if it serves; ErrPinned; ErrCanary if there is a canary, and to is given; why the copy could not take over.
func (s *Supervisor) Rollback(ctx context.Context, name, to string, grace *time.Duration) (Status, error) {
	return s.request(ctx, name, func(ctx context.Context, i *instance, gen *generation) (*managed.Process, error) {
		if to == "" && i.canary.Load() != nil {
			return nil, i.endCanary(ctx, gen, rolledBack, grace)
		}
		if err := i.noCanary(); err != nil {
			return nil, err
		}
		back, serves := i.rec.LastGood, i.procs.LastTried
		if gen != nil {
			serves = gen.Run.SHA256
		}
		var err error
		if to != "" {
			back, err = i.binaries.resolve(to)
		}
		switch {
		case err != nil:
			return nil, err
		case to != "" && !i.rec.Keeps(back):
			return nil, fmt.Errorf("%w: %q is not kept: see: pannier plugin versions %s", ErrNoCopy, to, i.name)
		case back == "" || !s.store.Has(back, i.name):
			return nil, fmt.Errorf("%w: there is no earlier version to go back to", ErrNoCopy)
		case i.rec.Pinned != "":
			return nil, fmt.Errorf("%w to sha256:%s: unpin it first: pannier plugin unpin %s", ErrPinned, i.rec.Pinned, i.name)
		case back == serves:
			return nil, fmt.Errorf("%w: sha256:%s serves already", ErrNoSwap, back)
		}
		was := i.rec
		i.rec.Refuse(serves, rolledBack)
		for _, f := range s.found.files(i.name) {
			sha, err := i.procs.Sum(f.path)
			if sha == back {
				break
			}
			if err == nil {
				i.rec.Refuse(sha, cmp.Or(i.rec.Refused[sha], rolledBack))
			}
		}
		delete(i.rec.Refused, back)
		i.rec.LastGood = back // what is chosen when all else is refused
		next, err := i.settle(ctx, gen, grace)
		if err != nil && next == nil {
			why := i.rec.Refused[back]
			i.rec.LastGood, i.rec.Refused = was.LastGood, was.Refused
			i.rec.Refuse(back, cmp.Or(why, err.Error()))
			err = errors.Join(err, i.rec.save(s.dir))
			i.set("", "", i.copyRecord())
		}
		return next, err
	})
}

// Pin makes a plugin run only the copy that which names, or its current one if which is empty, whatever is put into
// the plugin directory. which is a version, or at least the first 6 digits of a checksum. Errors: ErrUnknown;
// ErrNoCopy; why the copy could not take over, in which case the pin is unchanged.
func (s *Supervisor) Pin(ctx context.Context, name, which string) (Status, error) {
	return s.request(ctx, name, func(ctx context.Context, i *instance, gen *generation) (*managed.Process, error) {
		sha, err := "", error(nil)
		switch {
		case which != "":
			sha, err = i.binaries.resolve(which)
		case gen != nil:
			sha = gen.Run.SHA256
		default:
			err = fmt.Errorf("%w: none serves now, so name one: pannier plugin pin %s VERSION", ErrNoCopy, i.name)
		}
		if err == nil {
			err = i.binaries.keep(sha)
		}
		if err != nil {
			return nil, err
		}
		was := i.rec.Pinned
		i.rec.Pinned = sha
		delete(i.rec.Refused, sha)
		next, err := i.settleOrSame(ctx, gen)
		if err != nil && next == nil { // otherwise the next host would start it
			i.rec.Pinned = was
			err = errors.Join(err, i.rec.save(s.dir))
			i.set("", "", i.copyRecord())
		}
		return next, err
	})
}

// Unpin lets the binary in the plugin directory run again. Errors: ErrUnknown; why that binary could not take
// over. The plugin is unpinned in either case.
func (s *Supervisor) Unpin(ctx context.Context, name string) (Status, error) {
	return s.request(ctx, name, func(ctx context.Context, i *instance, gen *generation) (*managed.Process, error) {
		i.rec.Pinned = ""
		return i.settleOrSame(ctx, gen)
	})
}

// keep makes sure that there is a copy with that checksum: one that is kept already, or a new one made from the
// plugin directory.
func (i *binaries) keep(sha string) error {
	if i.sup.store.Has(sha, i.name) {
		return nil
	}
	for _, f := range i.sup.found.files(i.name) {
		if got, err := i.procs.Sum(f.path); err != nil || got != sha {
			continue
		}
		_, unpin, err := i.sup.store.Add(f.path, i.name, i.admit)
		if err == nil {
			unpin()
		}
		return err
	}
	return fmt.Errorf("%w: sha256:%s is neither in %s nor kept", ErrNoCopy, sha, i.sup.cfg.PluginDir)
}

// settle writes the record and lets the binary that should run take over.
func (i *instance) settle(ctx context.Context, gen *generation, grace *time.Duration) (*managed.Process, error) {
	if err := i.rec.save(i.sup.dir); err != nil {
		return nil, err
	}
	defer func() { i.set("", "", i.copyRecord()) }()
	if gen == nil {
		return nil, nil // the next start uses the new record, and begins at once
	}
	next, err := i.procs.Replace(ctx, gen.Process, grace)
	if errors.Is(err, managed.ErrSame) {
		err = fmt.Errorf("%w: %s runs already", ErrNoSwap, gen.describe())
		if i.rec.Pinned != "" {
			err = fmt.Errorf("%w, to which the plugin is pinned: run pannier plugin unpin %s", err, i.name)
		}
	}
	return next, err
}

// settleOrSame is settle, but succeeds if the right binary runs already.
func (i *instance) settleOrSame(ctx context.Context, gen *generation) (*managed.Process, error) {
	next, err := i.settle(ctx, gen, nil)
	if errors.Is(err, ErrNoSwap) {
		return nil, nil
	}
	return next, err
}

// order is what an operator asks of a plugin, which the set's goroutine does; gen serves, or is nil. It returns the
// process that serves then, if that is another one.
type order func(ctx context.Context, i *instance, gen *generation) (next *managed.Process, err error)

// request passes an operator's order to the instance and waits until it is done.
func (s *Supervisor) request(ctx context.Context, name string, do order) (Status, error) {
	s.rescan()
	i := s.instance(name)
	if i == nil {
		return Status{}, s.unknown(name)
	}
	return s.order(ctx, i, do)
}

// requestUp is request for a plugin that is to serve then: if it had no process, it waits until one has come up.
func (s *Supervisor) requestUp(ctx context.Context, name string, do order) (Status, error) {
	st, err := s.request(ctx, name, do)
	if err != nil || st.State != Starting {
		return st, err
	}
	err = s.Await(ctx, func(all []Status) bool {
		n := slices.IndexFunc(all, func(now Status) bool { return now.Name == name })
		if n >= 0 {
			st = all[n]
		}
		return n < 0 || st.State != Starting
	})
	if err == nil && st.PID == 0 {
		err = fmt.Errorf("plugin %q: %s", name, st.LastError)
	}
	return st, err
}

// order is request for an instance.
func (s *Supervisor) order(ctx context.Context, i *instance, do order) (Status, error) {
	err := i.procs.Do(ctx, func(ctx context.Context, p *managed.Process) (*managed.Process, error) {
		next, err := do(ctx, i, of(p))
		if p == nil && err == nil {
			i.set("", "", waking)
		}
		return next, err
	})
	switch {
	case errors.Is(err, managed.ErrStopped) && s.closed():
		return i.snapshot(), ErrClosed
	case errors.Is(err, managed.ErrStopped):
		return Status{}, s.unknown(i.name)
	case err != nil && ctx.Err() == nil:
		err = fmt.Errorf("plugin %q: %w", i.name, err)
	}
	return i.snapshot(), err
}

// Log returns the path of the file that a plugin's processes print to. Errors: ErrUnknown.
func (s *Supervisor) Log(name string) (string, error) {
	i := s.instance(name)
	if i == nil {
		return "", s.unknown(name)
	}
	_, err := os.Stat(i.logPath)
	return i.logPath, err
}
