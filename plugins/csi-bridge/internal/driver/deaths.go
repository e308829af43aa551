package driver

import (
	"context"
	"fmt"
	"path"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// maxDeaths is how often in a row a driver may end in a call before the call is refused.
	maxDeaths = 2
	// deathsCount is how long a death counts.
	deathsCount = 10 * time.Minute
	// maxDeadly bounds the calls that are remembered; the oldest is dropped.
	maxDeadly = 1000
)

// deadly is a call: the RPC and the object that it is about.
type deadly struct{ method, object string }

// deaths remembers in which calls a driver has ended, that is closed the connection before it answered. Every call in
// flight at that time is charged, since any of them may have been the reason. A charged call is then made only while
// no other charged one is in flight, so that an innocent call is not charged with a deadly one again. An answer of
// any kind clears it.
type deaths struct {
	alone chan struct{} // held by the charged call that is in flight

	mu    sync.Mutex
	calls map[deadly]death
	// connections counts those that were made, and ended those of them that a death has ended. If two more have been
	// made since a death than later deaths explain, somebody else has restarted the driver: it gets another chance.
	connections, ended, lastEnded int
}

type death struct {
	times       int
	at          time.Time
	unexplained int // connections without a death when it happened
}

// connected counts a new connection and returns its number.
func (d *deaths) connected() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.connections++
}

// connection is the number of the newest one.
func (d *deaths) connection() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.connections
}

// of returns how often in a row the driver has ended in the call lately, and whether it ever has since it last
// answered it.
func (d *deaths) of(c deadly) (times int, ago time.Duration, ever bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	last, ever := d.calls[c]
	ago = time.Since(last.at)
	if ago > deathsCount || d.connections-d.ended > last.unexplained+1 {
		return 0, ago, ever
	}
	return last.times, ago, ever
}

// charge records that the driver has ended in the call, which was made on that connection.
// The driver may have been restarted, and connected to, since.
func (d *deaths) charge(c deadly, connection int) {
	d.mu.Lock()
	if connection > d.lastEnded {
		d.ended++
		d.lastEnded = connection
	}
	d.mu.Unlock()
	times, _, _ := d.of(c)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.calls == nil {
		d.calls = map[deadly]death{}
	}
	d.calls[c] = death{times: times + 1, at: time.Now(), unexplained: d.connections - d.ended}
	if len(d.calls) > maxDeadly {
		oldest := c
		for k, v := range d.calls {
			if v.at.Before(d.calls[oldest].at) {
				oldest = k
			}
		}
		delete(d.calls, oldest)
	}
}

// survived clears the call.
func (d *deaths) survived(c deadly) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.calls, c)
}

// admit waits until the call may be made, or refuses it. release follows the call.
func (d *deaths) admit(ctx context.Context, c deadly) (release func(), err error) {
	times, _, ever := d.of(c)
	if times >= maxDeaths {
		return nil, d.refusal(c).Err()
	}
	if !ever {
		return func() {}, nil
	}
	select {
	case d.alone <- struct{}{}:
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return func() { <-d.alone }, nil
}

// refusal explains why a call is not made, and what makes it possible again.
func (d *deaths) refusal(c deadly) *status.Status {
	times, ago, _ := d.of(c)
	return status.New(codes.Internal, fmt.Sprintf(
		"the driver died of %s %d times in a row (it closed the connection before it answered), last %s ago, and is not "+
			"called for it again: restart or replace the driver to try again at once, or wait %s; its own log says why it died",
		path.Base(c.method), times, ago.Round(time.Second), (deathsCount-ago).Round(time.Second)))
}

// mayKill reports whether deaths in the RPC count. The questions of the fingerprint are asked always: only they show
// that a driver is well again.
func mayKill(method string) bool {
	return !slices.ContainsFunc(questions, func(r RPC) bool { return r.method == method })
}

var questions = []RPC{Probe, GetPluginInfo, GetPluginCapabilities, GetControllerCaps, GetNodeCaps, GetNodeInfo}
