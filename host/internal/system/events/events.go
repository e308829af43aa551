package events

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/pannier/pannier/internal/notify"
	"github.com/pannier/pannier/internal/printable"
)

// The topics: the kind of an event's subject.
const (
	TopicDevice   = "device"
	TopicDriver   = "driver"
	TopicPlugin   = "plugin"
	TopicWorkload = "workload"
	TopicVolume   = "volume"
	TopicSnapshot = "snapshot"
	TopicClaim    = "claim"
	TopicService  = "service"
	TopicAgent    = "agent"
)

// Topics are all topics.
var Topics = []string{
	TopicAgent, TopicClaim, TopicDevice, TopicDriver, TopicPlugin, TopicService, TopicSnapshot, TopicVolume, TopicWorkload,
}

// TypeLagged is the type of the event (topic "agent") that a subscriber gets in place of those that it was too slow
// for. Details["missed"] is their number.
const TypeLagged = "lagged"

// DefaultSize is how many events a Bus keeps by default.
const DefaultSize = 1000

// Event is something that happened.
type Event struct {
	Seq     uint64    // orders the events of one Bus, from 1; set by Publish
	Time    time.Time // set by Publish if it is zero
	Topic   string    // one of the topics above
	Type    string    // what happened: "healthy", "started", "released", ...
	Subject string    // the driver's, plugin's, workload's, volume's or service's id
	Message string    // for people, one line
	Details map[string]string
}

// Filter selects events; its zero value: all.
type Filter struct {
	// Since leaves out the events of before; zero: none.
	Since time.Time
	// Topics are the topics of the events; empty: all.
	Topics []string
}

func (f Filter) wants(e Event) bool {
	return !e.Time.Before(f.Since) && (len(f.Topics) == 0 || slices.Contains(f.Topics, e.Topic))
}

// Bus passes events to subscribers. It is safe for concurrent use and starts no goroutine, so it needs no Close.
type Bus struct {
	mu    sync.Mutex
	ring  []Event // event seq is at ring[seq%len(ring)]
	first uint64  // seq of the oldest event that there may be; 0: 1
	last  uint64  // seq of the newest event, 0 before the first
	added notify.Broadcast
}

// New makes a Bus that keeps the most recent size events (DefaultSize if size is not positive).
func New(size int) *Bus {
	if size <= 0 {
		size = DefaultSize
	}
	return &Bus{ring: make([]Event, size)}
}

// Publish appends e and wakes the subscribers. It never blocks on them. The caller may continue to use e.Details.
// Texts are escaped, since they may be of a plugin or a driver.
func (b *Bus) Publish(e Event) {
	e.Type, e.Subject = printable.String(e.Type), printable.String(e.Subject)
	e.Message = printable.String(e.Message)
	details := make(map[string]string, len(e.Details))
	for key, value := range e.Details {
		details[printable.String(key)] = printable.String(value)
	}
	e.Details = details
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last++
	e.Seq = b.last
	b.ring[b.last%uint64(len(b.ring))] = e
	b.added.Notify()
}

// Recent returns the n most recent events, the oldest first, or fewer if the Bus has fewer. The events are shared:
// their Details must not be changed.
func (b *Bus) Recent(n int) []Event { return b.RecentOf(Filter{}, n) }

// RecentOf is Recent of the events that a filter wants.
func (b *Bus) RecentOf(f Filter, n int) []Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.recentLocked(f, n)
}

func (b *Bus) recentLocked(f Filter, n int) []Event {
	first := b.startLocked(len(b.ring))
	out := []Event{}
	for seq := b.last; seq >= first && len(out) < n; seq-- {
		if e := b.ring[seq%uint64(len(b.ring))]; f.wants(e) {
			out = append(out, e)
		}
	}
	slices.Reverse(out)
	return out
}

// Subscribe yields the recent most recent events (as Recent does) and then each new one until ctx ends. The position
// is taken now, not when the iteration starts, so nothing published in between is lost. A subscriber that has fallen
// behind the ring gets one TypeLagged event and continues with the oldest event. The sequence can be used once;
// Details must not be changed.
func (b *Bus) Subscribe(ctx context.Context, recent int) iter.Seq[Event] {
	return b.SubscribeTo(ctx, Filter{}, recent)
}

// SubscribeTo is Subscribe to the events that a filter wants. A TypeLagged event comes whatever it wants.
func (b *Bus) SubscribeTo(ctx context.Context, f Filter, recent int) iter.Seq[Event] {
	b.mu.Lock()
	next := b.last + 1
	if wanted := b.recentLocked(f, recent); len(wanted) > 0 {
		next = wanted[0].Seq
	}
	b.mu.Unlock()
	return func(yield func(Event) bool) {
		for ctx.Err() == nil {
			e, added, ok := b.at(next)
			if !ok {
				select {
				case <-added:
				case <-ctx.Done():
				}
				continue
			}
			if (e.Type == TypeLagged || f.wants(e)) && !yield(e) {
				return
			}
			next = e.Seq + 1
		}
	}
}

// at returns event seq, or a TypeLagged one for all from seq up to the oldest that is kept. If seq is still to come,
// ok is false and added is closed by the next Publish.
func (b *Bus) at(seq uint64) (e Event, added <-chan struct{}, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if seq > b.last {
		return Event{}, b.added.Wait(), false
	}
	if oldest := b.startLocked(len(b.ring)); seq < oldest {
		return lagged(seq, oldest), nil, true
	}
	return b.ring[seq%uint64(len(b.ring))], nil, true
}

// lagged makes the event that replaces those from first up to, but without, oldest. It has the seq of the last one
// missed, so that seqs stay in order.
func lagged(first, oldest uint64) Event {
	missed := strconv.FormatUint(oldest-first, 10)
	return Event{
		Seq: oldest - 1, Time: time.Now(), Topic: TopicAgent, Type: TypeLagged,
		Message: fmt.Sprintf("%s events were missed: this follower is too slow", missed),
		Details: map[string]string{"missed": missed},
	}
}

// startLocked returns the seq of the n-th most recent event, of the oldest one if there are fewer, or of the next one
// if n is not positive.
func (b *Bus) startLocked(n int) uint64 {
	kept := min(b.last+1-max(b.first, 1), uint64(len(b.ring)))
	return b.last + 1 - min(uint64(max(n, 0)), kept)
}
