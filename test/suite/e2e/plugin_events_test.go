package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// follower collects the events of the plugin "emitter" from a host's API, by generation of the plugin.
type follower struct {
	mu   sync.Mutex
	seqs map[uint64][]uint64
	wg   sync.WaitGroup
}

// followEmitter follows until the agent or the test ends.
func followEmitter(t *testing.T, h *testhost.Host, recent int32) *follower {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	f := &follower{seqs: map[uint64][]uint64{}}
	t.Cleanup(func() { cancel(); f.wg.Wait() })
	stream, err := h.Client().Agent.Events(ctx, &hostv1.EventsRequest{Follow: true, Recent: recent})
	if err != nil {
		t.Fatal(err)
	}
	f.wg.Go(func() {
		defer stream.Close()
		for stream.Receive() {
			e := stream.Msg().GetEvent()
			if id := strings.Split(e.GetDetails()["event"], "/"); len(id) == 3 && e.GetSubject() == "emitter" {
				generation, _ := strconv.ParseUint(id[1], 10, 64)
				seq, _ := strconv.ParseUint(id[2], 10, 64)
				f.mu.Lock()
				f.seqs[generation] = append(f.seqs[generation], seq)
				f.mu.Unlock()
			}
		}
	})
	return f
}

// await waits for that many events of a generation and returns all that have arrived.
func (f *follower) await(h *testhost.Host, generation uint64, n int) (seqs []uint64) {
	h.Eventually(fmt.Sprintf("%d events of generation %d", n, generation), func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if seqs = append([]uint64(nil), f.seqs[generation]...); len(seqs) < n {
			return fmt.Errorf("there are %d", len(seqs))
		}
		return nil
	})
	return seqs
}

// inOrder checks that no event is missing or duplicated.
func inOrder(t *testing.T, seqs []uint64) {
	t.Helper()
	for n := range seqs[1:] {
		if seqs[n+1] != seqs[n]+1 {
			t.Errorf("event %d comes after %d", seqs[n+1], seqs[n])
		}
	}
}

// goesOn checks that no event is missing or duplicated, but for a few after last: what an agent that was killed had
// received but not yet published is lost.
func goesOn(t *testing.T, seqs []uint64, last uint64) {
	t.Helper()
	next := slices.IndexFunc(seqs, func(n uint64) bool { return n > last })
	if next < 1 || seqs[next] > last+40 {
		t.Fatalf("after event %d: %d", last, seqs)
	}
	inOrder(t, seqs[:next])
	inOrder(t, seqs[next:])
}

// A plugin's events are among the host's events, also if they were emitted while the host was down, or by a
// plugin that was then swapped.
func TestPluginEvents(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t)+`
plugin "emitter" {
  args = ["20"]
}
`)
	data, err := os.ReadFile(testbin.BuildDir(t, filepath.Join(testbin.Root(), "sdk/testdata/emitter")))
	if err != nil {
		t.Fatal(err)
	}
	put := func(data []byte) {
		t.Helper()
		path := filepath.Join(h.PluginDir, "emitter")
		if err := os.WriteFile(path+".tmp", data, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".tmp", path); err != nil {
			t.Fatal(err)
		}
	}
	put(data)
	h.Start()
	first := followEmitter(t, h, 1000)
	first.await(h, 1, 10)
	if out := h.Run("events", "-recent", "1000"); !strings.Contains(out, "it ticks") ||
		!strings.Contains(out, "event=emitter/1/1") {
		t.Errorf("the events:\n%s", out)
	}
	h.Kill()
	first.wg.Wait()
	seen := first.await(h, 1, 10)
	inOrder(t, seen)
	last := seen[len(seen)-1]
	time.Sleep(3 * time.Second) // the plugin emits events during this time, while the host is down

	h.Start()
	second := followEmitter(t, h, 1000)
	again := second.await(h, 1, len(seen)+30)
	if again[0] != 1 {
		t.Errorf("the first event is %d: those of before the restart are gone", again[0])
	}
	goesOn(t, again, last)
	put(append(data, 0))
	second.await(h, 2, 10)
	h.Eventually("the old process has ended", func() error {
		for _, p := range mustStatus(t, h).GetPlugins() {
			if p.GetName() == "emitter" && p.GetDraining() != 0 {
				return fmt.Errorf("it is %v", p)
			}
		}
		return nil
	})
	goesOn(t, second.await(h, 1, 30), last)
	inOrder(t, second.await(h, 2, 10))
	if out := h.Run("events", "-recent", "1000"); !strings.Contains(out, "last") {
		t.Errorf("the last event of the old process is not told:\n%s", out)
	}
}

func mustStatus(t *testing.T, h *testhost.Host) *hostv1.StatusResponse {
	t.Helper()
	s, err := h.Status()
	if err != nil {
		t.Fatal(err)
	}
	return s
}
