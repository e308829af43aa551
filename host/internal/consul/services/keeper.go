package services

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
)

// settle is how long after a change the next sync begins: changes come in bursts.
const settle = 200 * time.Millisecond

// errChanged is why a sync is cut off.
var errChanged = errors.New("the instances have changed")

// keeper keeps the services of one Consul.
type keeper struct {
	r      *Registrar
	name   string
	consul service.Consul

	wakeSync, wakeBeat chan struct{} // hold a token when something has changed

	mu sync.Mutex
	// held are the instances that were registered here and not taken out again, gone
	// those that were taken out and still stand in Config.Instances.
	held map[string]registration.Instance
	gone map[string]bool
	// cut ends the sync under way, and over is closed when it has ended; nil: none.
	cut      context.CancelCauseFunc
	over     chan struct{}
	problems map[activity]string
}

// activity is what may fail on its own.
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
	}
}

// hold makes an instance one of this Consul's, before the plugin is asked.
func (k *keeper) hold(ctx context.Context, i registration.Instance) error {
	return k.change(ctx, func() {
		k.held[i.ID] = i
		delete(k.gone, i.ID)
	})
}

// registered tells how a registration went. One that failed is the caller's to try
// again: the sync does not, since an instance that Consul refuses would keep the
// others from being in sync.
func (k *keeper) registered(i registration.Instance, err error) {
	if err != nil {
		k.mu.Lock()
		delete(k.held, i.ID)
		k.mu.Unlock()
	}
	signal(k.wakeBeat)
}

// letGo makes an instance none of this Consul's any more.
func (k *keeper) letGo(ctx context.Context, id string) error {
	return k.change(ctx, func() {
		delete(k.held, id)
		k.gone[id] = true
	})
}

// change waits until a sync that goes by the list from before has ended. The
// plugin learns of that end before it hears of the caller's own call: both go over
// one connection. While a plugin is replaced there are two; should the old process
// still act on its list then, the sync that follows puts it right.
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

// touch begins everything anew. over is closed when the sync under way, which is cut
// off, has ended; nil: there is none.
func (k *keeper) touch() (over <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	signal(k.wakeSync)
	signal(k.wakeBeat)
	if k.cut == nil {
		return nil
	}
	k.cut(errChanged)
	return k.over
}

// begin makes the context of one sync, which a change from now on cuts off, and what
// ends it. Changes until now are in its list.
func (k *keeper) begin(ctx context.Context) (_ context.Context, end func()) {
	ctx, cut := context.WithCancelCause(ctx)
	over := make(chan struct{})
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cut, k.over = cut, over
	select {
	case <-k.wakeSync:
	default:
	}
	return ctx, func() {
		cut(nil)
		close(over)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.cut = nil
	}
}

// instances are what Consul is to have now, by id.
func (k *keeper) instances() []registration.Instance {
	known := k.r.cfg.Instances()[k.name] // not under the lock: it takes others
	k.mu.Lock()
	defer k.mu.Unlock()
	want, listed := make([]registration.Instance, 0, len(known)), map[string]bool{}
	for _, i := range known {
		listed[i.ID] = true
		if _, newer := k.held[i.ID]; !newer && !k.gone[i.ID] {
			want = append(want, i)
		}
	}
	for _, i := range k.held {
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

// report tells of a failure once, however often it is repeated, and of its end.
func (k *keeper) report(what activity, err error) {
	text := ""
	if err != nil {
		text = fmt.Sprintf("%s with Consul %q fails and is tried again: %v", what, k.name, err)
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
		k.r.cfg.Log.Warn("the "+string(what)+" of services fails, it is tried again", "consul", k.name, "error", err)
		k.event(string(what)+"-failed", k.name, text)
	}
}

func (k *keeper) event(kind, subject, message string) {
	k.r.cfg.Events.Publish(events.Event{
		Topic: events.TopicService, Type: kind, Subject: subject, Message: message, Details: map[string]string{"consul": k.name},
	})
}

// problem is what fails now.
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

// rest waits for d, or until woken and the changes have settled; without a d
// (negative) until woken. It says whether ctx still stands.
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
