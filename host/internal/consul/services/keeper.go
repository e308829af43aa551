package services

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
)

// settle is how long after a change the next sync begins, because changes come in bursts.
const settle = 200 * time.Millisecond

// errChanged is the reason why a sync is cancelled.
var errChanged = errors.New("the instances have changed")

// keeper keeps the services of one Consul in sync.
type keeper struct {
	r      *Registrar
	name   string
	consul service.Consul

	wakeSync, wakeBeat chan struct{} // hold a token after a change

	mu sync.Mutex
	// held are the instances that were registered here and not deregistered; gone are the instances that were deregistered
	// but are still in Config.Instances.
	held map[string]registration.Instance
	gone map[string]bool
	// registering counts the calls of Register in progress.
	registering int
	// cut cancels the sync in progress, and over is closed when it has ended; nil: none.
	cut      context.CancelCauseFunc
	over     chan struct{}
	touched  bool // since the last sync began: it must not wait for a change of the catalog
	problems map[activity]string
	// conflicts says, by id, whose registration stands in the place of an instance, and for which the intentions are
	// somebody else's.
	conflicts map[registration.Action]map[string]string
}

// activity names what can fail independently.
type activity string

const (
	syncing activity = "sync"
	beating activity = "heartbeat"
)

func newKeeper(r *Registrar, name string, c service.Consul) *keeper {
	return &keeper{
		r: r, name: name, consul: c,
		wakeSync: make(chan struct{}, 1), wakeBeat: make(chan struct{}, 1),
		held: map[string]registration.Instance{}, gone: map[string]bool{}, problems: map[activity]string{},
		conflicts: map[registration.Action]map[string]string{},
	}
}

// hold adds an instance to this Consul's, before the plugin is called.
func (k *keeper) hold(ctx context.Context, i registration.Instance) error {
	return k.change(ctx, func() {
		k.held[i.ID] = i
		delete(k.gone, i.ID)
		k.registering++
	})
}

// busy is true while instances are being registered: a sync would find them missing and register them once more.
func (k *keeper) busy() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.registering > 0
}

// registered records how a registration went. The caller retries a failed one, and the sync does not: an instance
// that Consul refuses would prevent the sync of the others.
func (k *keeper) registered(i registration.Instance, err error) {
	k.mu.Lock()
	k.registering--
	if err != nil {
		delete(k.held, i.ID)
	}
	k.mu.Unlock()
	signal(k.wakeBeat)
}

// letGo removes an instance from this Consul's.
func (k *keeper) letGo(ctx context.Context, id string) error {
	return k.change(ctx, func() {
		delete(k.held, id)
		k.gone[id] = true
	})
}

// change waits until a sync that uses the old list has ended. Both calls use one connection, so the plugin learns
// that the sync was cancelled before it receives the caller's call. While a plugin is replaced there are two
// connections; if the old process still applies its list, the next sync corrects it.
func (k *keeper) change(ctx context.Context, fn func()) error {
	k.mu.Lock()
	fn()
	k.mu.Unlock()
	over := k.touch()
	if over == nil {
		return nil
	}
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// touch starts a new sync and heartbeat. over is closed when the sync in progress, which is cancelled, has ended;
// nil: there is none.
func (k *keeper) touch() (over <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.touched = true
	signal(k.wakeSync)
	signal(k.wakeBeat)
	if k.cut == nil {
		return nil
	}
	k.cut(errChanged)
	return k.over
}

// begin returns the context of one sync, which any later change cancels, whether there was a change since the one
// before, and a function that ends it. Its list includes all earlier changes.
func (k *keeper) begin(ctx context.Context) (_ context.Context, touched bool, end func()) {
	ctx, cut := context.WithCancelCause(ctx)
	over := make(chan struct{})
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cut, k.over = cut, over
	touched, k.touched = k.touched, false
	select {
	case <-k.wakeSync:
	default:
	}
	return ctx, touched, func() {
		cut(nil)
		close(over)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.cut = nil
	}
}

// instances returns the instances that Consul should have, by id.
func (k *keeper) instances() []registration.Instance {
	known := k.r.cfg.Instances()[k.name] // not under the lock, because it takes other locks
	k.mu.Lock()
	defer k.mu.Unlock()
	want, listed := make([]registration.Instance, 0, len(known)), map[string]bool{}
	digests := map[string]string{} // digests of the current proxies
	for _, i := range known {
		listed[i.ID], digests[i.ID] = true, i.ProxyDigest
		if _, newer := k.held[i.ID]; !newer && !k.gone[i.ID] {
			want = append(want, i)
		}
	}
	for _, i := range k.held {
		if listed[i.ID] {
			i.ProxyDigest = digests[i.ID]
		}
		want = append(want, i)
	}
	for id := range k.gone {
		if !listed[id] {
			delete(k.gone, id)
		}
	}
	slices.SortFunc(want, func(a, b registration.Instance) int { return cmp.Compare(a.ID, b.ID) })
	return want
}

// report logs and publishes a failure once, however often it is repeated, and its end.
func (k *keeper) report(what activity, err error) {
	text := ""
	if err != nil {
		text = fmt.Sprintf("%s with Consul %q fails and is retried: %v", what, k.name, err)
	}
	k.mu.Lock()
	before := k.problems[what]
	k.problems[what] = text
	k.mu.Unlock()
	switch text {
	case before:
	case "":
		k.r.cfg.Log.Info("the "+string(what)+" of services works again", "consul", k.name)
		k.event(string(what)+"-restored", k.name, fmt.Sprintf("%s with Consul %q works again", what, k.name))
	default:
		k.r.cfg.Log.Warn("the "+string(what)+" of services fails and is retried", "consul", k.name, "error", err)
		k.event(string(what)+"-failed", k.name, text)
	}
}

// conflict logs and publishes once each instance whose id, or whose intentions, are somebody else's in this Consul.
func (k *keeper) conflict(what registration.Action, found map[string]string) {
	text := "a service is not registered: its id is another host's"
	if what == registration.IntentionsConflict {
		text = "the intentions of a service are not as its spec has them: others have written them"
	}
	k.mu.Lock()
	before := k.conflicts[what]
	k.conflicts[what] = found
	k.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(found)) {
		if _, known := before[id]; known {
			continue
		}
		k.r.cfg.Log.Warn(text, "consul", k.name, "id", id, "reason", found[id])
		k.event(string(what), id, fmt.Sprintf("in Consul %q: %s", k.name, found[id]))
	}
}

// conflictOf names what stands in the place of an instance, or of its intentions; empty: nothing.
func (k *keeper) conflictOf(what registration.Action, id string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.conflicts[what][id]
}

func (k *keeper) event(kind, subject, message string) {
	k.r.cfg.Events.Publish(events.Event{
		Topic: events.TopicService, Type: kind, Subject: subject, Message: message,
		Details: map[string]string{"consul": k.name},
	})
}

// problem returns the current failures.
func (k *keeper) problem() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []string
	for _, what := range []activity{syncing, beating} {
		if text := k.problems[what]; text != "" {
			all = append(all, text)
		}
	}
	return strings.Join(all, "; ")
}

// signal puts a token into a channel that has room for one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// rest waits for d, or until it is woken and the changes have settled; with a negative d it waits until it is
// woken. It returns false when ctx has ended.
func rest(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	var late <-chan time.Time
	if d >= 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-late:
		return true
	case <-wake:
		return rest(ctx, settle, nil)
	case <-ctx.Done():
		return false
	}
}
