package sdk

import (
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
)

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
