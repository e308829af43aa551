package sdk

import (
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
)

const (
	// firstAttend is how long a new process waits for its host's first Attend:
	// the host may have died between starting us and calling us.
	firstAttend = time.Minute
	// finishCalls bounds how long calls in flight may go on after a stop.
	finishCalls = 30 * time.Second
	// goAway is how long a host may take to hear that it is to make no more calls. One
	// that comes until then is answered: refused, it would have to be made again.
	goAway = 20 * time.Millisecond
)

// lifetime decides when the process ends: when it is told to, or when no host
// has attended it for the orphan timeout.
type lifetime struct {
	log      hclog.Logger
	stopping chan struct{} // closed when the end begins
	idle     chan struct{} // closed when no call is left and none is admitted any more
	// finish, where set, is called when no call is left, and flush after it: what they
	// do may take the server.
	finish, flush func()

	mu       sync.Mutex
	server   *grpc.Server
	attended int // hosts that hold Attend open: two for a moment when one replaces another
	orphan   *time.Timer
	stopped  bool
	calls    int  // in flight
	ending   bool // no more are to come
	closed   bool // none is admitted any more
}

func newLifetime(log hclog.Logger) *lifetime {
	l := &lifetime{log: log, stopping: make(chan struct{}), idle: make(chan struct{})}
	l.orphan = time.AfterFunc(firstAttend, func() { l.orphaned(firstAttend) })
	return l
}

func (l *lifetime) serving(s *grpc.Server) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.server = s
	if l.stopped {
		s.Stop()
	}
}

// attend holds the process alive until release is called, and from then on for
// orphanTimeout; 0 is for ever.
func (l *lifetime) attend(orphanTimeout time.Duration) (release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.attended++
	l.orphan.Stop()
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.attended--
		if l.attended == 0 && orphanTimeout > 0 {
			l.orphan.Stop()
			l.orphan = time.AfterFunc(orphanTimeout, func() { l.orphaned(orphanTimeout) })
		}
	}
}

func (l *lifetime) orphaned(after time.Duration) {
	l.mu.Lock()
	alone := l.attended == 0
	l.mu.Unlock()
	if alone {
		l.stop("no host has attended for " + after.String())
	}
}

// begin admits a call, or says that it is too late.
func (l *lifetime) begin() (end func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, false
	}
	l.calls++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.calls--
		l.checkIdle()
	}, true
}

func (l *lifetime) checkIdle() {
	if l.ending && l.calls == 0 && !l.closed {
		l.closed = true
		close(l.idle)
	}
}

// stop begins the end and returns at once: new calls are refused, those in flight
// have finishCalls, then the implementation is closed and the host gets the last
// events. Then the server ends, and with it Main.
func (l *lifetime) stop(why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return
	}
	l.stopped = true
	l.orphan.Stop()
	l.log.Info("stopping", "reason", why)
	close(l.stopping)
	if l.server != nil { // else serving stops it
		go l.end(l.server)
	}
}

func (l *lifetime) end(srv *grpc.Server) {
	force := time.AfterFunc(finishCalls, srv.Stop)
	defer force.Stop()
	go l.finishAll()
	srv.GracefulStop() // returns when the host's stream of events has ended, too
}

// finishAll does what comes after the last call.
func (l *lifetime) finishAll() {
	time.Sleep(goAway)
	l.mu.Lock()
	l.ending = true
	l.checkIdle()
	l.mu.Unlock()
	late := time.NewTimer(finishCalls)
	defer late.Stop()
	select {
	case <-l.idle:
	case <-late.C: // a call does not heed its context
	}
	for _, do := range []func(){l.finish, l.flush} {
		if do != nil {
			do()
		}
	}
}
