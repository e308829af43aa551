// A plugin that emits events: continuously at the rate of its argument, from its start until it is closed, and at
// once the number in the node id of an attachment. The last one, when it is closed, has the type "last" and the
// number of events before it. Each attachment also prints a line to standard output, and logs
// one with a logger of the plugin's own.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/storage"
)

func main() {
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	e := &emitter{stop: make(chan struct{})}
	rate := 0
	if len(os.Args) > 1 {
		rate, _ = strconv.Atoi(os.Args[1])
	}
	e.ticking.Go(func() { e.tick(rate) })
	sdk.Main(sdk.Info{Name: "emitter", Version: "1.0.0"}, storage.Plugin(e))
}

type emitter struct {
	storage.Storage
	stop    chan struct{}
	ticking sync.WaitGroup
	mu      sync.Mutex
	emitted int
}

func (e *emitter) tick(rate int) {
	if rate == 0 {
		return
	}
	began := time.Now()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for done := 0; ; {
		select {
		case <-tick.C:
			due := int(time.Since(began) * time.Duration(rate) / time.Second)
			e.emit(due - done)
			done = due
		case <-e.stop:
			return
		}
	}
}

func (e *emitter) emit(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for range n {
		e.emitted++
		sdk.Emit(sdk.Event{
			Type: "tick", Subject: strconv.Itoa(os.Getpid()), Message: "it ticks",
			Details: map[string]string{"n": strconv.Itoa(e.emitted)},
		})
	}
}

func (e *emitter) Publish(_ context.Context, _ storage.Driver, req storage.PublishRequest) error {
	slog.Info("published", "to", req.TargetPath)
	fmt.Println("published to", req.TargetPath)
	n, err := strconv.Atoi(req.TargetPath)
	if err == nil {
		e.emit(n)
	}
	return err
}

func (e *emitter) Close() error {
	close(e.stop)
	e.ticking.Wait()
	sdk.Emit(sdk.Event{
		Type: "last", Subject: strconv.Itoa(os.Getpid()),
		Details: map[string]string{"n": strconv.Itoa(e.emitted)},
	})
	return nil
}
