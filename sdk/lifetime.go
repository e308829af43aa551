package sdk

import (
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
)

const (
	// firstAttend is how long a new process waits for its host's first Attend: the host may have died between
	// starting the process and calling it.
	firstAttend = time.Minute
	// finishCalls limits how long calls in flight may continue after a stop.
	finishCalls = 30 * time.Second
	// goAway is how long to wait until the host knows that it must make no more calls. Calls that arrive
	// before then are still answered; if they were refused, the host would have to repeat them.
	goAway = 20 * time.Millisecond
)

// lifetime decides when the process ends: when the host asks for it, or when no host has attended it for the
// orphan timeout.
type lifetime struct {
	log      hclog.Logger
	stopping chan struct{} // closed when stop begins
	idle     chan struct{} // closed when no call is in flight and none is admitted any more
	// finish, if set, is called when no call is in flight, and all of flush after it. They may use the server.
	finish func()
	flush  []func()

	mu       sync.Mutex
	server   *grpc.Server
	attended int // hosts with an open Attend stream; two for a moment when one replaces another
	orphan   *time.Timer
	stopped  bool
	calls    int  // in flight
	ending   bool // no new calls are expected
	closed   bool // no new calls are admitted
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

// attend keeps the process alive until release is called, and then for orphanTimeout; 0 means forever.
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

// begin admits a call, or returns false if it is too late.
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

// stop begins the end and returns at once: new calls are refused, those in flight have finishCalls, then the
// implementation is closed and the host reads the last events. Then the server ends, and with it Main.
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
	if l.server != nil { // otherwise serving stops it
		go l.end(l.server)
	}
}

func (l *lifetime) end(srv *grpc.Server) {
	force := time.AfterFunc(finishCalls, srv.Stop)
	defer force.Stop()
	go l.finishAll()
	srv.GracefulStop() // returns when the host's event stream has ended, too
}

// finishAll does what follows the last call.
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
	case <-late.C: // a call ignores its context
	}
	if l.finish != nil {
		l.finish()
	}
	for _, do := range l.flush {
		do()
	}
}
