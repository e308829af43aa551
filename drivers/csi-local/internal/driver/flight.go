package driver

import (
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// flight knows which volumes and snapshots have an operation in flight. The
// zero value is ready to use.
type flight struct {
	mu   sync.Mutex
	busy map[string]string // id -> operation
}

// begin takes all ids for one operation, or none: then it returns Aborted, the
// specification's code for an operation that is pending.
func (f *flight) begin(operation string, ids ...string) (end func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range ids {
		if other, ok := f.busy[id]; ok {
			return nil, status.Errorf(codes.Aborted,
				"%s: %q has a %s in flight: repeat the call when that has ended", operation, id, other)
		}
	}
	if f.busy == nil {
		f.busy = make(map[string]string)
	}
	for _, id := range ids {
		f.busy[id] = operation
	}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, id := range ids {
			delete(f.busy, id)
		}
	}, nil
}
