package events

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func publish(b *Bus, n int) {
	for i := range n {
		b.Publish(Event{Topic: TopicVolume, Type: "registered", Subject: fmt.Sprint(i)})
	}
}

// take reads n events of a subscription, and fails the test if they do not arrive.
func take(t *testing.T, b *Bus, recent, n int, then ...func()) []Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	seq := b.Subscribe(ctx, recent)
	for _, f := range then {
		f()
	}
	var got []Event
	if n == 0 {
		return got
	}
	for e := range seq {
		if got = append(got, e); len(got) == n {
			return got
		}
	}
	t.Fatalf("got %d events in time, want %d", len(got), n)
	return nil
}

func seqs(events []Event) string {
	var s []uint64
	for _, e := range events {
		s = append(s, e.Seq)
	}
	return fmt.Sprint(s)
}

func TestRecent(t *testing.T) {
	for _, tt := range []struct {
		size, published, n int
		want               string
	}{
		{4, 0, 10, "[]"},
		{4, 3, 0, "[]"},
		{4, 3, -1, "[]"},
		{4, 3, 2, "[2 3]"},
		{4, 3, 10, "[1 2 3]"},
		{4, 4, 10, "[1 2 3 4]"},
		{4, 9, 10, "[6 7 8 9]"},
		{0, DefaultSize + 1, 1 << 40, fmt.Sprint(count(2, DefaultSize+1))},
	} {
		t.Run(fmt.Sprintf("%d of %d in %d", tt.n, tt.published, tt.size), func(t *testing.T) {
			b := New(tt.size)
			publish(b, tt.published)
			if got := seqs(b.Recent(tt.n)); got != tt.want {
				t.Fatalf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func count(from, to uint64) (s []uint64) {
	for ; from <= to; from++ {
		s = append(s, from)
	}
	return s
}

func TestSubscribeGetsRecentThenNew(t *testing.T) {
	b := New(10)
	publish(b, 5)
	got := take(t, b, 2, 4, func() { publish(b, 2) })
	if seqs(got) != "[4 5 6 7]" {
		t.Fatalf("got %s", seqs(got))
	}
	if got[0].Time.IsZero() || got[0].Topic != TopicVolume || got[0].Subject != "3" {
		t.Fatalf("got %+v", got[0])
	}
}

func TestFilter(t *testing.T) {
	b := New(10)
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	for i, topic := range []string{TopicAgent, TopicVolume, TopicClaim, TopicVolume, TopicVolume, TopicAgent} {
		b.Publish(Event{Topic: topic, Time: at(i + 1)})
	}
	for name, c := range map[string]struct {
		f    Filter
		n    int
		want string
	}{
		"all":                {Filter{}, 10, "[1 2 3 4 5 6]"},
		"a topic":            {Filter{Topics: []string{TopicVolume}}, 10, "[2 4 5]"},
		"the last of topics": {Filter{Topics: []string{TopicVolume, TopicClaim}}, 3, "[3 4 5]"},
		"since":              {Filter{Since: at(4)}, 10, "[4 5 6]"},
		"both":               {Filter{Since: at(3), Topics: []string{TopicVolume}}, 10, "[4 5]"},
		"none":               {Filter{Since: at(7)}, 10, "[]"},
		"none wanted":        {Filter{}, 0, "[]"},
	} {
		if got := seqs(b.RecentOf(c.f, c.n)); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var got []Event
	followed := b.SubscribeTo(ctx, Filter{Topics: []string{TopicVolume}}, 2)
	publish(b, 1) // a volume's
	b.Publish(Event{Topic: TopicAgent})
	publish(b, 1)
	for e := range followed {
		if got = append(got, e); len(got) == 4 {
			break
		}
	}
	if seqs(got) != "[4 5 7 9]" {
		t.Errorf("followed %s", seqs(got))
	}
}

func TestSlowSubscriberIsToldWhatItMissed(t *testing.T) {
	b := New(4)
	got := take(t, b, 0, 5, func() { publish(b, 10) })
	if seqs(got) != "[6 7 8 9 10]" {
		t.Fatalf("got %s", seqs(got))
	}
	if e := got[0]; e.Topic != TopicAgent || e.Type != TypeLagged || e.Details["missed"] != "6" {
		t.Fatalf("got %+v", e)
	}
	if e := got[1]; e.Type != "registered" || e.Subject != "6" {
		t.Fatalf("got %+v", e)
	}
}

func TestSubscriptionEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(4)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan int)
		go func() {
			n := 0
			for range b.Subscribe(ctx, 0) {
				n++
			}
			ended <- n
		}()
		synctest.Wait() // it waits for an event
		b.Publish(Event{})
		synctest.Wait()
		cancel()
		if n := <-ended; n != 1 {
			t.Fatalf("got %d events, want 1", n)
		}
	})
}

func TestPublisherKeepsItsDetails(t *testing.T) {
	b := New(4)
	d := map[string]string{"pid": "1"}
	b.Publish(Event{Details: d})
	d["pid"] = "2"
	if got := b.Recent(1)[0].Details["pid"]; got != "1" {
		t.Fatalf("the event changed with its publisher's map: pid %s", got)
	}
}

// Many publishers and followers are active concurrently. Every follower gets each seq once and in order, or
// is notified that it missed it.
func TestConcurrentFollowersAccountForEveryEvent(t *testing.T) {
	const publishers, each, total = 4, 500, 2000
	b := New(16)
	var wg sync.WaitGroup
	for range 3 {
		seq := b.Subscribe(t.Context(), 0)
		wg.Go(func() {
			var last, seen uint64
			for e := range seq {
				if e.Seq <= last {
					t.Errorf("seq %d after %d", e.Seq, last)
				}
				if e.Type == TypeLagged {
					var missed uint64
					fmt.Sscan(e.Details["missed"], &missed)
					seen += missed
				} else {
					seen++
				}
				if last = e.Seq; last == total {
					break
				}
			}
			if seen != total {
				t.Errorf("%d events accounted for, want %d", seen, total)
			}
		})
	}
	for range publishers {
		wg.Go(func() { publish(b, each) })
	}
	wg.Wait()
}

// A plugin's or driver's text in an event is one line that no terminal obeys.
func TestForgedEvents(t *testing.T) {
	b := New(0)
	evil := "ok\n2026-01-01  agent  up\x1b[2J\u009b\u202e"
	b.Publish(Event{Topic: TopicPlugin, Type: evil, Subject: evil, Message: evil, Details: map[string]string{evil: evil}})
	e := b.Recent(1)[0]
	for _, text := range []string{e.Type, e.Subject, e.Message, fmt.Sprint(e.Details)} {
		if strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) || !strings.Contains(text, `\u001b[2J`) {
			t.Errorf("%q", text)
		}
	}
}
