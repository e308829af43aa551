package sdk

import (
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
)

// Event is something that happened in a plugin and that an operator may want to know:
// `pannier events` shows it. Texts that are too long are cut, see wire.CutEvent.
//
// An event is seen by everyone who may look at the host, and is kept: it must hold no
// secret, nor an error's text that may quote one.
type Event struct {
	Type    string // what happened, such as "driver-lost"
	Subject string // what it happened to, such as a driver's id; may be empty
	Message string // for people, one line
	Details map[string]string
}

// Emit hands an event to the host. It does not block and cannot fail: the process
// keeps the newest 1,000 events that the host has not acknowledged, over a restart of
// the host too, and the host tells how many were dropped beyond those. The events of
// one process reach the host in their order, once each; those that are emitted in the
// implementation's Close are the last. Events of a process that never came to serve are
// not told, and a host that is older than events gets none.
//
// What is so, rather than what happened, is for HealthReporter.
func Emit(e Event) { emitted.add(e) }

// emitted are the events of this process.
var emitted = newEventQueue()

// maxKept is how many events a process keeps that the host has not acknowledged.
const maxKept = 1000

// eventQueue keeps events until they are acknowledged.
type eventQueue struct {
	mu      sync.Mutex
	kept    []*pluginv1.Event // oldest first
	last    uint64            // the seq of the newest
	changed chan struct{}     // closed and replaced when an event is added or acknowledged
}

func newEventQueue() *eventQueue { return &eventQueue{changed: make(chan struct{})} }

func (q *eventQueue) add(e Event) {
	event := &pluginv1.Event{
		Time: timestamppb.New(time.Now()), Type: e.Type, Subject: e.Subject, Message: e.Message, Details: e.Details,
	}
	wire.CutEvent(event) // copies Details
	q.mu.Lock()
	defer q.mu.Unlock()
	q.last++
	event.Seq = q.last
	q.kept = append(q.kept, event)
	if len(q.kept) > maxKept {
		q.kept = slices.Delete(q.kept, 0, len(q.kept)-maxKept)
	}
	q.wake()
}

// ack forgets all events up to seq.
func (q *eventQueue) ack(seq uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := q.upTo(seq); n > 0 {
		q.kept = slices.Delete(q.kept, 0, n)
		q.wake()
	}
}

// after gives the kept events that came after seq, and what is closed when there may be
// others. They are shared: nobody changes them.
func (q *eventQueue) after(seq uint64) (events []*pluginv1.Event, changed <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.kept[q.upTo(seq):]), q.changed
}

// upTo is how many of the kept events are not after seq.
func (q *eventQueue) upTo(seq uint64) int {
	n, _ := slices.BinarySearchFunc(q.kept, seq, func(e *pluginv1.Event, seq uint64) int {
		if e.GetSeq() <= seq {
			return -1
		}
		return 1
	})
	return n
}

func (q *eventQueue) wake() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// finishEvents bounds how long a process that ends waits for its host to take the
// last events.
const finishEvents = 2 * time.Second

// eventService is EventService, the same for every kind.
type eventService struct {
	pluginv1.UnimplementedEventServiceServer
	log   hclog.Logger
	queue *eventQueue
	ended chan struct{} // closed when no more events are to come

	mu      sync.Mutex
	readers int
	newest  chan struct{} // closed when a newer stream is opened
	left    chan struct{} // closed and replaced when a stream ends
}

func newEventService(log hclog.Logger, q *eventQueue) *eventService {
	return &eventService{log: log, queue: q, ended: make(chan struct{}), newest: make(chan struct{}), left: make(chan struct{})}
}

// Events sends what the host does not have, until the host goes or the process ends.
func (s *eventService) Events(stream grpc.BidiStreamingServer[pluginv1.EventsRequest, pluginv1.EventsResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	newer := s.enter()
	defer s.leave()
	if err := stream.SendHeader(nil); err != nil { // we know that we are read
		return err
	}
	s.queue.ack(first.GetAck())
	go func() { // ends with the stream
		for {
			req, err := stream.Recv()
			if err != nil {
				return
			}
			s.queue.ack(req.GetAck())
		}
	}()
	for sent := first.GetAck(); ; {
		events, changed := s.queue.after(sent)
		for _, e := range events {
			if err := stream.Send(&pluginv1.EventsResponse{Event: e}); err != nil {
				return err
			}
			sent = e.GetSeq()
		}
		if len(events) > 0 {
			continue
		}
		select {
		case <-changed:
		case <-newer:
			return status.Error(codes.Aborted, "a newer stream has the events")
		case <-s.ended:
			return nil
		case <-stream.Context().Done():
			return nil
		}
	}
}

// enter ends the streams that are there: one host reads.
func (s *eventService) enter() (newer <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.newest)
	s.newest = make(chan struct{})
	s.readers++
	return s.newest
}

func (s *eventService) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readers--
	close(s.left)
	s.left = make(chan struct{})
}

// finish waits until the host has all events, where one reads them, and ends its
// stream. It is called once, when nothing can happen any more.
func (s *eventService) finish() {
	defer close(s.ended)
	timeout := time.NewTimer(finishEvents)
	defer timeout.Stop()
	for {
		s.mu.Lock()
		readers, left := s.readers, s.left
		s.mu.Unlock()
		unread, changed := s.queue.after(0)
		if readers == 0 || len(unread) == 0 {
			return
		}
		select {
		case <-changed:
		case <-left:
		case <-timeout.C:
			s.log.Warn("the host has not taken the last events", "events", len(unread))
			return
		}
	}
}
