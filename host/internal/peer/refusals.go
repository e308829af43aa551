package peer

import (
	"sync"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/time/rate"
)

// refusals log what was refused: ten at once and one a second, and how many were not
// told, so that nobody fills a disk from outside.
type refusals struct {
	log   hclog.Logger
	allow *rate.Limiter

	mu    sync.Mutex
	quiet int
}

func newRefusals(log hclog.Logger) *refusals {
	return &refusals{log: log, allow: rate.NewLimiter(1, 10)}
}

func (r *refusals) refused(err error, method, by, from string) {
	r.mu.Lock()
	if !r.allow.Allow() {
		r.quiet++
		r.mu.Unlock()
		return
	}
	quiet := r.quiet
	r.quiet = 0
	r.mu.Unlock()
	r.log.Warn("a call of another agent was refused", "error", err, "call", method, "by", by, "from", from, "not_told", quiet)
}
