package workload

import (
	"context"
	"fmt"
	"time"

	"github.com/pannier/pannier/host/internal/csi/mounts"
)

// heldWait is how long a volume may be held before its release is given up until
// the next attempt: who is just ending has it for a moment still.
const heldWait = 250 * time.Millisecond

// withdraw takes the mount of a request away, unless a container still has the
// volume: a container's mount is a copy, and stays when the host's is unmounted.
// The claim would be free, and the container go on writing.
func (r *run) withdraw(ctx context.Context, v *volume) error {
	// Held over the call: of two workloads that share the volume and stop at once,
	// one sees that it is the last. Who starts with the volume need not wait.
	unlock, err := r.leaving.lock(ctx, v.Ref)
	if err != nil {
		return err
	}
	defer unlock()
	if err := r.notHeld(ctx, v); err != nil {
		return err
	}
	return r.unpublish(ctx, v)
}

// notHeld fails with the first of those who hold the volume.
func (r *run) notHeld(ctx context.Context, v *volume) error {
	tick := time.NewTicker(heldWait / 10)
	defer tick.Stop()
	for deadline := time.Now().Add(heldWait); ; {
		h, err := r.holder(v)
		if err == nil && h == nil {
			return nil
		}
		if err != nil || time.Now().After(deadline) {
			return fmt.Errorf("unpublish volume %q for %s: %w", v.Ref, r.instance, heldError(h, err))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

func heldError(h *mounts.Holder, err error) error {
	if err != nil {
		return fmt.Errorf("see who has it: %w", err)
	}
	return fmt.Errorf("it is still in use by %s: stop that, and the release goes on", h)
}

// holder is somebody who keeps the volume for this request. Which of several
// requests on this node somebody's copy was made of cannot be told. So the last
// request waits for all, the last one that writes for all that may write; until
// then the mode allows others, and it is theirs.
func (r *run) holder(v *volume) (*mounts.Holder, error) {
	others, writers, err := r.others(v)
	if err != nil || others && (v.Usage.ReadOnly || writers) {
		return nil, err
	}
	held, err := r.Layout.Holders(v.Target, v.Request.Destination)
	if err != nil {
		return nil, err
	}
	for _, h := range held {
		if !others || !h.ReadOnly {
			return &h, nil
		}
	}
	return nil, nil
}

// others says whether the volume is published for other requests on this node,
// and whether one of them may write.
func (r *run) others(v *volume) (found, writers bool, err error) {
	there, err := mounts.Below(r.Layout.Driver(v.Driver))
	if err != nil {
		return false, false, err
	}
	for _, m := range there {
		ref, published := r.Layout.Published(m.Path)
		if published && ref == v.Ref && m.Path != v.Target {
			found, writers = true, writers || !m.ReadOnly
		}
	}
	return found, writers, nil
}
