package supervisor

import (
	"context"
	"testing"
	"time"

	"github.com/pannier/pannier/host/internal/managed"
)

func TestDrainTimesOut(t *testing.T) {
	g := &generation{Process: &managed.Process{}, Users: managed.NewUsers()}
	if _, ok := g.Acquire(); !ok {
		t.Fatal("acquire failed")
	}
	g.Retire()
	g.drainedIn(t.Context(), time.Millisecond)
	ended, end := context.WithCancel(t.Context())
	end()
	g.drainedIn(ended, time.Hour)
}
