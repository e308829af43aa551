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

// Event is something that happened in a plugin and that an operator may want to know. `pannier events` shows it.
// Texts that are too long are cut, see wire.CutEvent.
//
// Events are kept, and visible to everyone who may inspect the host: an event must contain no secret, nor the text
// of an error that may quote one.
type Event struct {
	Type    string // what happened, such as "driver-lost"
	Subject string // what it happened to, such as a driver's id; may be empty
	Message string // one line for people
	Details map[string]string
}

// Emit sends an event to the host. It does not block and cannot fail: the process keeps the newest 1,000 events
// that the host has not acknowledged, even while the host restarts, and the host reports how many were dropped
// beyond those. The events of one process reach the host in order, and once each; the last ones are those that the
// implementation's Close emits. Events of a process that never came to serve are not delivered.
//
// Use HealthReporter for a state rather than something that happened.
func Emit(e Event) { emitted.add(e) }

// emitted holds the events of this process.
var emitted = newEventQueue()

// maxKept bounds how many events that the host has not acknowledged are kept.
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

// ack removes all events up to seq.
func (q *eventQueue) ack(seq uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := q.upTo(seq); n > 0 {
		q.kept = slices.Delete(q.kept, 0, n)
		q.wake()
	}
}

// after returns the kept events after seq, and a channel that is closed when there may be others. The events are
// shared and must not be changed.
func (q *eventQueue) after(seq uint64) (events []*pluginv1.Event, changed <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.kept[q.upTo(seq):]), q.changed
}

// upTo returns how many of the kept events are not after seq.
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

// finishEvents bounds how long an ending process waits for its host to read the last events.
const finishEvents = 2 * time.Second

// eventService implements EventService for every kind.
type eventService struct {
	pluginv1.UnimplementedEventServiceServer
	log   hclog.Logger
	queue *eventQueue
	ended chan struct{} // closed when no more events will come

	mu      sync.Mutex
	readers int
	newest  chan struct{} // closed when a newer stream is opened
	left    chan struct{} // closed and replaced when a stream ends
}

func newEventService(log hclog.Logger, q *eventQueue) *eventService {
	return &eventService{
		log: log, queue: q, ended: make(chan struct{}), newest: make(chan struct{}),
		left: make(chan struct{}),
	}
}

// Events sends the events that the host does not have, until the host disconnects or the process ends.
func (s *eventService) Events(stream grpc.BidiStreamingServer[pluginv1.EventsRequest, pluginv1.EventsResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	newer := s.enter()
	defer s.leave()
	if err := stream.SendHeader(nil); err != nil { // tells the host that its stream is accepted
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

// enter ends the streams that are open, because only one host reads.
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

// finish waits until the host has all events, if a host reads them, and ends its stream. It is called once, when
// no event can be emitted any more.
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
			s.log.Warn("the host has not read the last events", "events", len(unread))
			return
		}
	}
}
