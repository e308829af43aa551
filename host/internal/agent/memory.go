package agent

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"

	"github.com/pannier/pannier/sdk/resident"
)

const (
	// gcPercent makes the garbage collector run twice as often as by default, as long as little is allocated. Most of
	// the heap is a few large blocks without pointers, so a run takes a millisecond or two.
	gcPercent = 50
	// gcHeadroom is how much is allocated between two runs otherwise, in bytes, within 50 to 400 % of what is in use.
	// With gcPercent, servers that take thousands of claims a second would spend a tenth of their time on runs.
	gcHeadroom = 32 << 20
	// busyRate is how much is allocated per second from when on the agent is busy, in bytes.
	busyRate = 16 << 20
	// startPercent makes the collector wait until the heap has 16 MiB, the first time.
	startPercent = 400
	// trimInterval is how soon memory is returned to the system after the start or a burst, such as a list of all
	// volumes. By default Go keeps it until the heap has grown by half, which on a quiet host takes minutes.
	trimInterval = 30 * time.Second
	// burstInterval is how soon the end of a burst is looked for, where one is under way when memory would be returned.
	burstInterval = 5 * time.Second
	// trimFrom is how much memory is worth that, in bytes.
	trimFrom = 1 << 20
)

// startFast lets the garbage collector wait until all parts are open, unless the operator has set GOGC. What the start
// leaves behind is collected then.
func (a *agent) startFast() {
	if os.Getenv("GOGC") == "" {
		was := debug.SetGCPercent(startPercent)
		a.closers.add(func() error { debug.SetGCPercent(was); return nil })
	}
}

// tuneMemory keeps the agent small from now on.
func (a *agent) tuneMemory(ctx context.Context) error {
	p := &pace{at: time.Now(), allocated: readHeap().allocated, percent: gcPercent}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
		p.follow(ctx)
	}
	a.closers.loop(ctx, func(ctx context.Context) {
		for started, busy := true, false; ; {
			now := time.Now()
			wait := now.Truncate(trimInterval).Add(trimInterval).Sub(now) // when plugins are measured, too
			if busy {
				wait = min(wait, burstInterval)
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			h := readHeap()
			if busy = p.busy(time.Now(), h); busy || !started && h.surplus() < trimFrom {
				continue
			}
			started = false
			if err := resident.Trim(); err != nil {
				a.log.Debug("the agent uses more memory than it needs", "error", err)
			}
		}
	})
	return nil
}

// pace decides after each garbage collection how much may be allocated until the next one.
type pace struct {
	mu        sync.Mutex
	at        time.Time // of the last collection
	allocated uint64    // until then
	percent   int       // GOGC
}

// follow calls collected after each collection until ctx ends.
func (p *pace) follow(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	runtime.AddCleanup(new(*pace), func(p *pace) {
		p.collected(time.Now(), readHeap())
		p.follow(ctx)
	}, p)
}

func (p *pace) collected(now time.Time, h heap) {
	percent := gcPercent
	if p.busy(now, h) {
		percent = int(min(max(gcHeadroom*100/max(h.live, 1), gcPercent), startPercent))
	}
	p.mu.Lock()
	p.at, p.allocated = now, h.allocated
	p.mu.Unlock()
	if percent != p.percent {
		debug.SetGCPercent(percent)
		p.percent = percent
	}
}

// busy reports whether much was allocated per second since the last collection.
func (p *pace) busy(now time.Time, h heap) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return float64(h.allocated-p.allocated) > busyRate*now.Sub(p.at).Seconds()
}

// heap is what the runtime says of the heap, in bytes.
type heap struct {
	free      uint64 // not in use
	objects   uint64 // in use or to be collected
	live      uint64 // what the last collection found in use
	allocated uint64 // ever
}

func readHeap() heap {
	samples := []metrics.Sample{
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/gc/heap/live:bytes"},
		{Name: "/gc/heap/allocs:bytes"},
	}
	metrics.Read(samples)
	return heap{samples[0].Value.Uint64(), samples[1].Value.Uint64(), samples[2].Value.Uint64(), samples[3].Value.Uint64()}
}

// surplus is how much memory a collection could return to the system: what is unused already, and what was allocated
// since the last collection.
func (h heap) surplus() uint64 { return h.free + h.objects - min(h.objects, h.live) }
