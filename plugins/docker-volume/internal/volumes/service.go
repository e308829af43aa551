package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pannier/pannier/internal/kmutex"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

const (
	// linger is how long a volume is kept after its last Unmount: for the content of an image the engine mounts it,
	// unmounts it and mounts it again.
	linger = 2 * time.Second
	// nextTry is how long a start goes on, and its workload is kept, after a Mount that failed: an engine gives up long
	// before a slow driver does, and its next try joins the start.
	nextTry = time.Minute
	// compareInterval is the pause between two comparisons of the Mounts with the real holders.
	compareInterval = 30 * time.Second
	// seenAfter is how long after a Mount its holder is looked for: most containers have started by then.
	seenAfter = 5 * time.Second
	// releaserPause is the pause between two looks whether another process has stopped the workload.
	releaserPause = 50 * time.Millisecond
	// undoTimeout bounds what follows a call that nobody waits for any more.
	undoTimeout = 30 * time.Second
)

// service does what the engine asks for.
type service struct {
	config func() *config
	store  *store
	work   *work
	self   process
	log    *slog.Logger

	locks kmutex.Locks[string] // by volume: one comparison or release at a time

	ctx     context.Context // of what goes on after a call
	pending sync.WaitGroup
}

// later does something with a volume after a pause, unless the process stops serving before: then the next one
// compares all volumes.
func (s *service) later(pause time.Duration, name string, do func(ctx context.Context, name string) error) {
	s.pending.Go(func() {
		select {
		case <-time.After(pause):
		case <-s.ctx.Done():
			return
		}
		if err := do(s.ctx, name); err != nil && s.ctx.Err() == nil && !errors.Is(err, errNoVolume) {
			s.log.Warn("a volume's use cannot be compared with its holders yet; this is retried", "volume", name, "error", err)
		}
	})
}

// create makes a volume known to this host, and to the cluster if it is not.
func (s *service) create(ctx context.Context, name string, opts map[string]string) error {
	want, err := s.config().read(name, opts)
	if err != nil {
		return err
	}
	if _, err := s.work.workloadOf(ctx, name, want.use.Namespace); err != nil {
		return err
	}
	if err := s.work.define(ctx, want); err != nil {
		return err
	}
	want.use.CreatedAt = time.Now().UTC().Truncate(time.Second)
	has, err := s.store.create(ctx, name, want.use)
	if err != nil {
		return fmt.Errorf("note volume %q: %w", name, err)
	}
	if has.Namespace != want.use.Namespace || has.ReadOnly != want.use.ReadOnly || has.Delete != want.use.Delete {
		return fmt.Errorf("volume %q was created on this host with other options (%s=%s, %s=%t, %s=%t): remove it first", name,
			optNamespace, has.Namespace, optReadOnly, has.ReadOnly, optDelete, has.Delete)
	}
	return nil
}

// known returns the record of a volume, or of one that the ledger has and this host has not forgotten.
func (s *service) known(ctx context.Context, name string) (record, error) {
	r, err := s.store.get(ctx, name)
	if !errors.Is(err, errNoVolume) {
		return r, err
	}
	if _, gone, failed := s.store.kv.Get(ctx, forgotten+name); gone || failed != nil {
		return r, cmp.Or(failed, err)
	}
	found, failed := s.work.find(ctx, name, s.config().Namespace)
	if failed != nil || found == nil {
		return r, cmp.Or(failed, err)
	}
	return *found, nil
}

// mount counts a Mount and returns the volume's path. If it fails, or nobody waits for the answer any more, it does not
// count: no Unmount follows. A start that is under way goes on for a while.
func (s *service) mount(ctx context.Context, name, id string) (path string, err error) {
	engine, _ := ctx.Value(http.LocalAddrContextKey).(*process)
	add := func(r *record) { r.add(id, time.Now(), engine); r.KeptUntil = time.Time{} }
	r, err := s.enter(ctx, name, add)
	if errors.Is(err, errNoVolume) {
		if r, err = s.known(ctx, name); err == nil {
			_, err = s.store.create(ctx, name, r)
		}
		if err == nil {
			r, err = s.enter(ctx, name, add)
		}
	}
	if err != nil {
		return "", err
	}
	path, err = s.work.start(ctx, name, r, s.config().timeout)
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		_, failed := s.store.update(undo, name, func(r *record) error {
			r.remove(id)
			r.KeptUntil = time.Now().Add(nextTry)
			return nil
		})
		s.later(nextTry, name, s.compare)
		return "", errors.Join(err, failed)
	}
	if !r.ReadOnly {
		if err := empty(path); err != nil {
			s.log.Warn("the image's content is not copied into the volume, since it cannot be seen to be empty", "volume", name, "error", err)
		}
	}
	s.later(seenAfter, name, s.compare)
	return path, nil
}

// enter changes a record once no other process is about to stop the volume's workload.
func (s *service) enter(ctx context.Context, name string, change func(*record)) (record, error) {
	errBusy := errors.New("its workload is being stopped")
	for {
		r, err := s.store.update(ctx, name, func(r *record) error {
			if r.Releaser != nil && r.Releaser.lives() {
				return errBusy
			}
			r.Releaser = nil
			change(r)
			return nil
		})
		if !errors.Is(err, errBusy) {
			return r, err
		}
		select {
		case <-time.After(releaserPause):
		case <-ctx.Done():
			return r, context.Cause(ctx)
		}
	}
}

// unmount ends one Mount. After the last one the volume is kept for a moment.
func (s *service) unmount(ctx context.Context, name, id string) error {
	r, err := s.store.update(ctx, name, func(r *record) error { r.remove(id); return nil })
	if err == nil && !r.used() {
		s.later(linger, name, s.compare)
	}
	return err
}

// compare adjusts the Mounts of a volume to its real holders, and releases it when there is neither. Engines do not
// always say that a container has ended: not while this plugin is away, nor after a restart of dockerd with
// live-restore.
func (s *service) compare(ctx context.Context, name string) error {
	unlock, err := s.locks.Lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	r, err := s.store.get(ctx, name)
	if err != nil {
		return err
	}
	n, err := s.work.look(ctx, name, r.Namespace)
	if err != nil {
		return err
	}
	if r.used() && len(n.holders) == 0 && n.up {
		// One container may take over from another: its mount is there a moment after its Mount.
		select {
		case <-time.After(linger):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if n, err = s.work.look(ctx, name, r.Namespace); err != nil {
			return err
		}
	}
	if r.used() {
		r, err = s.store.update(ctx, name, func(r *record) error { r.compare(len(n.holders), n.looked); return nil })
		if err != nil {
			return err
		}
	}
	if r.used() || len(n.holders) > 0 || !n.up || time.Now().Before(r.KeptUntil) {
		return nil
	}
	return s.release(ctx, name, r.Namespace)
}

// errUsed: a Mount has come meanwhile.
var errUsed = errors.New("the volume is in use")

// release stops the workload of a volume without Mounts.
func (s *service) release(ctx context.Context, name, namespace string) error {
	var used bool
	_, err := s.enter(ctx, name, func(r *record) {
		if used = r.used(); !used {
			r.Releaser = &s.self
		}
	})
	if err != nil || used {
		return err
	}
	err = s.work.stop(ctx, name, namespace, false)
	return errors.Join(err, s.released(ctx, name))
}

// released ends a release, also for a caller that is gone.
func (s *service) released(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	_, err := s.store.update(ctx, name, func(r *record) error { r.Releaser = nil; return nil })
	return err
}

// remove forgets a volume. Its data is deleted if it was created so. What the counts say does not matter, since the
// engine has no container with it; another engine's container may have it.
func (s *service) remove(ctx context.Context, name string) error {
	unlock, err := s.locks.Lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	r, err := s.store.get(ctx, name)
	if errors.Is(err, errNoVolume) {
		return s.store.forget(ctx, name)
	}
	if err != nil {
		return err
	}
	n, err := s.work.look(ctx, name, r.Namespace)
	if err != nil {
		return err
	}
	if len(n.holders) > 0 {
		return fmt.Errorf("volume %q: %w by %s", name, errUsed, strings.Join(ownersOf(n.holders), ", "))
	}
	if _, err := s.enter(ctx, name, func(r *record) { r.Mounts, r.Releaser = nil, &s.self }); err != nil {
		return err
	}
	err = s.work.stop(ctx, name, r.Namespace, true)
	forget := s.store.forget
	if anonymous(name) {
		forget = s.store.delete
	} else if err == nil && r.Delete {
		err, forget = s.work.destroy(ctx, name, r.Namespace), s.store.delete
	}
	if err != nil {
		return errors.Join(err, s.released(ctx, name))
	}
	return forget(ctx, name)
}

// shown is a volume as the protocol has it.
type shown struct {
	Name       string
	Mountpoint string         `json:",omitempty"`
	CreatedAt  string         `json:",omitempty"`
	Status     map[string]any `json:",omitempty"`
}

// get shows one volume. It is there whether or not its state can be shown: with an error the engine would take it that
// there is no such volume.
func (s *service) get(ctx context.Context, name string) (shown, error) {
	r, err := s.known(ctx, name)
	if err != nil {
		return shown{}, err
	}
	v := shown{Name: name, CreatedAt: r.CreatedAt.Format(time.RFC3339)}
	id, err := s.work.workloadOf(ctx, name, r.Namespace)
	if err == nil {
		v.Mountpoint, v.Status, err = s.status(ctx, name, id, r)
	}
	if err != nil {
		v.Status = map[string]any{"error": text(err)}
	}
	return v, nil
}

// status is where a volume is mounted, and who has it.
func (s *service) status(ctx context.Context, name, workload string, r record) (path string, all map[string]any,
	err error,
) {
	n, err := s.work.look(ctx, name, r.Namespace)
	if err != nil {
		return "", nil, err
	}
	seen := 0
	for _, m := range r.Mounts {
		if m.Seen {
			seen++
		}
	}
	return n.path, map[string]any{
		"namespace": r.Namespace, "workload": workload, "mounts": len(r.Mounts), "seen": seen, "holders": ownersOf(n.holders),
	}, nil
}

// list shows the volumes that get knows. What was forgotten and is not in the ledger any more is unknown from then on.
func (s *service) list(ctx context.Context) ([]shown, error) {
	names, err := s.store.names(ctx, prefix)
	gone, failed := s.store.names(ctx, forgotten)
	if err = cmp.Or(err, failed); err != nil {
		return nil, err
	}
	ledger, err := s.work.all(ctx, s.config().Namespace)
	if err != nil {
		s.log.Warn("the list has only the volumes that were used on this host", "error", err)
		ledger = gone
	}
	for _, name := range gone {
		if !slices.Contains(ledger, name) {
			failed = errors.Join(failed, s.store.kv.Delete(ctx, forgotten+name))
		}
	}
	names = append(names, slices.DeleteFunc(ledger, func(name string) bool { return slices.Contains(gone, name) })...)
	slices.Sort(names)
	all := []shown{}
	for _, name := range slices.Compact(names) {
		all = append(all, shown{Name: name})
	}
	return all, failed
}

// path is where a volume is mounted; empty: nowhere.
func (s *service) path(ctx context.Context, name string) (string, error) {
	r, err := s.known(ctx, name)
	if err != nil {
		return "", err
	}
	n, err := s.work.look(ctx, name, r.Namespace)
	return n.path, err
}

// watch compares all volumes, at once and then regularly, until ctx ends.
func (s *service) watch(ctx context.Context) {
	for {
		names, err := s.store.names(ctx, prefix)
		if err != nil && ctx.Err() == nil {
			s.log.Warn("the volumes cannot be compared with their holders yet; this is retried", "error", err)
		}
		for _, name := range names {
			s.later(0, name, s.compare)
		}
		select {
		case <-time.After(compareInterval):
		case <-ctx.Done():
			return
		}
	}
}

// ownersOf names holders for people.
func ownersOf(holders []*hostv1.Holder) []string {
	names := make([]string, 0, len(holders))
	for _, h := range holders {
		name := h.GetOwner()
		if name == "" {
			name = fmt.Sprintf("process %d (%s)", h.GetPid(), h.GetCommand())
		}
		names = append(names, name)
	}
	return names
}
