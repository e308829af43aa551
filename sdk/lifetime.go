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
)

// lifetime decides when the process ends: when it is told to, or when no host
// has attended it for the orphan timeout.
type lifetime struct {
	log      hclog.Logger
	stopping chan struct{} // closed when the end begins

	mu       sync.Mutex
	server   *grpc.Server
	attended int // hosts that hold Attend open: two for a moment when one replaces another
	orphan   *time.Timer
	stopped  bool
}

func newLifetime(log hclog.Logger) *lifetime {
	l := &lifetime{log: log, stopping: make(chan struct{})}
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

// stop begins the end and returns at once: new calls are refused, those in flight
// have finishCalls, then the server ends and with it Main.
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
	srv := l.server
	if srv == nil {
		return // serving stops it
	}
	go func() {
		force := time.AfterFunc(finishCalls, srv.Stop)
		defer force.Stop()
		srv.GracefulStop()
	}()
}
