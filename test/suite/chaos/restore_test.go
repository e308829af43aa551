package chaos

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"connectrpc.com/connect"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// pause returns a channel that is closed while nobody starts a workload, and those that run stop.
func (l *load) pause() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.quiet
}

// quieten stops the workloads until resume.
func (l *load) quieten() (resume func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.quiet)
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.quiet = make(chan struct{})
	})
}

// restore restores the ledger again and again, through any agent.
func (l *load) restore(ctx context.Context, over <-chan struct{}, seed uint64, client int) {
	chance := rand.New(rand.NewPCG(seed, uint64(client)))
	for {
		select {
		case <-over:
			return
		case <-time.After(between(chance, 0, 6*time.Second)):
			l.replace(ctx, pick(chance, l.sites), pick(chance, []time.Duration{0, 100 * time.Millisecond, time.Second}))
		}
	}
}

// replace saves the ledger while nobody has a volume, and restores it by an upload that takes a while, during which
// workloads start again. So a restore that succeeds changes nothing: a claim that was granted meanwhile has to refuse
// it.
func (l *load) replace(ctx context.Context, s site, takes time.Duration) {
	for _, v := range l.volumes {
		v.changes.Lock()
	}
	defer func() {
		for _, v := range l.volumes {
			v.changes.Unlock()
		}
	}()
	resume := l.quieten()
	defer resume()
	if !l.unused(ctx, s) {
		return
	}
	snapshot, err := s.save(ctx)
	if err != nil {
		return
	}
	err = s.restore(ctx, snapshot, func() {
		resume()
		time.Sleep(takes)
	})
	if err != nil && connect.CodeOf(err) != connect.CodeFailedPrecondition { // it may happen still
		select {
		case <-ctx.Done():
		case <-time.After(late):
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.restored++
	} else {
		l.unrestored++
	}
}

// unused waits for a moment until no volume is claimed.
func (l *load) unused(ctx context.Context, s site) bool {
	for end := time.Now().Add(3 * patience); time.Now().Before(end); time.Sleep(beat) {
		claims := 0
		for _, v := range l.volumes {
			answer, _, err := s.read(ctx, v.id)
			if err != nil {
				return false
			}
			claims += len(answer.claims)
		}
		if claims == 0 {
			return true
		}
	}
	return false
}

// save returns a snapshot of the ledger.
func (s site) save(ctx context.Context) (snapshot []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stream, err := s.client.Operator.SaveSnapshot(ctx, &hostv1.SaveSnapshotRequest{})
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	for stream.Receive() {
		snapshot = append(snapshot, stream.Msg().GetChunk()...)
	}
	return snapshot, stream.Err()
}

// restore replaces the ledger by a snapshot. It calls meanwhile after the first half of the upload.
func (s site) restore(ctx context.Context, snapshot []byte, meanwhile func()) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stream, err := s.client.Operator.RestoreSnapshot(ctx)
	if err != nil {
		return err
	}
	half := len(snapshot) / 2
	_ = stream.Send(&hostv1.RestoreSnapshotRequest{Chunk: snapshot[:half]}) // the answer has the reason
	meanwhile()
	_ = stream.Send(&hostv1.RestoreSnapshotRequest{Chunk: snapshot[half:]})
	_, err = stream.CloseAndReceive()
	return err
}
