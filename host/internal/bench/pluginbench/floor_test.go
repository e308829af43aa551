package pluginbench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/pannier/pannier/host/internal/system/program"
	"github.com/pannier/pannier/internal/atomicfile"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/wire"
	"github.com/pannier/pannier/test/bench/goplugin"
	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/testbin"
)

// floor is the least that a swap must do: the program is copied, the copy synced and started as a
// server of go-plugin's with a key of its own. Callers move to the new process when it has answered a call, and the old
// one ends when its calls have. There is no record, no configuration, no health, and no bad program.
type floor struct {
	program, dir string
	authority    *wire.Authority
	installed    int
	inPlace      table.Samples
	times        table.Samples

	mu      sync.Mutex
	serving *bareProcess
}

// bareProcess is a server of go-plugin's with its callers.
type bareProcess struct {
	identity.Identity
	end   func()
	calls sync.WaitGroup
}

func newFloor(b *testing.B) *floor {
	b.Helper()
	authority, err := wire.NewAuthority()
	if err != nil {
		b.Fatal(err)
	}
	f := &floor{program: testbin.BuildDir(b, "testdata/server"), dir: shortDir(b), authority: authority}
	f.serving, _ = f.start(b)
	return f
}

// start installs the program, starts a copy of it, and returns how long it took until that has answered a call.
func (f *floor) start(b *testing.B) (*bareProcess, time.Duration) {
	b.Helper()
	path := filepath.Join(f.dir, "server")
	f.installed++
	at := install(b, f.program, path, fmt.Sprint("#", f.installed))
	copied, _, err := program.Copy(path, f.dir)
	if err != nil {
		b.Fatal(err)
	}
	synced := make(chan error, 1)
	go func() { synced <- atomicfile.Sync(copied) }()
	next := &bareProcess{}
	next.Identity, next.end = goplugin.StartWithKey(b, copied, f.authority)
	if err := errors.Join(read(b.Context(), next), <-synced); err != nil {
		b.Fatal(err)
	}
	return next, time.Since(at)
}

func (f *floor) call(ctx context.Context) error {
	f.mu.Lock()
	now := f.serving
	now.calls.Add(1)
	f.mu.Unlock()
	defer now.calls.Done()
	return read(ctx, now)
}

// swaps swaps the process under load, as often in a second as a plugin.
func (f *floor) swaps(b *testing.B) {
	const swaps, every = 28, 600 * time.Millisecond
	l := startLoad(f.call)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for range measure.Turns(swaps, swaps*every) {
		next, took := f.start(b)
		f.inPlace = append(f.inPlace, took)
		f.mu.Lock()
		before := f.serving
		f.serving = next
		f.mu.Unlock()
		before.calls.Wait()
		before.end()
		<-tick.C
	}
	l.end()
	if len(l.failed) > 0 {
		b.Errorf("a bare process: %d calls failed, the first with %v", len(l.failed), l.failed[0])
	}
	f.times = append(f.times, l.times...)
}

// extra is the time of a call above the median, in milliseconds.
func (f *floor) extra(q float64) float64 {
	return float64(f.times.Quantile(q)-f.times.Quantile(0.5)) / float64(time.Millisecond)
}
