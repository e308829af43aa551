package state

import (
	"context"
	"slices"
	"sync"

	"github.com/pannier/pannier/cluster/claim"
)

// Topic is a part of the ledger that can be waited on.
type Topic string

// The topics of many records.
const (
	// TopicVolumes changes with any volume's definition.
	TopicVolumes Topic = volumes
	// TopicReleasing changes with any claim that is being released: when it begins, advances, or is freed.
	TopicReleasing Topic = claimsReleasing
	// TopicWorkloads changes with any workload's start, end or removal.
	TopicWorkloads Topic = workloads
	// TopicNodes changes with any node's record, its drivers included.
	TopicNodes Topic = nodes
	// TopicDrivers changes with any driver's counts.
	TopicDrivers Topic = drivers
	// TopicCluster changes when the cluster is given its identity.
	TopicCluster Topic = identity
	// TopicACL changes with any policy, role or token, and with the bootstrap.
	TopicACL Topic = aclPolicies
	// TopicLiveness changes with the lease that is promised to nodes.
	TopicLiveness Topic = liveness
	// TopicSigningKey changes with the signing key and its rotation.
	TopicSigningKey Topic = signingKey
	// TopicSecretsKeys changes with the names of the keys that encrypt secrets.
	TopicSecretsKeys Topic = secretsKeys
)

// TopicVolume changes with a volume's definition.
func TopicVolume(r claim.VolumeRef) Topic { return Topic(volumeKey(r)) }

// TopicClaims changes with any claim of a volume.
func TopicClaims(r claim.VolumeRef) Topic { return Topic(claims + volumePart(r)) }

// TopicWorkload changes with a workload's record and with any of its claims.
func TopicWorkload(r claim.WorkloadRef) Topic { return Topic(workloadKey(r)) }

// TopicNode changes with a node's record.
func TopicNode(name string) Topic { return Topic(nodeKey(name)) }

// TopicOnNode changes with any workload that runs or waits on a node, and with any claim there.
func TopicOnNode(name string) Topic { return Topic(workloadsByNode + name) }

// TopicTokensOn changes with any token's record on a node.
func TopicTokensOn(name string) Topic { return Topic(tokensByNode + name) }

// TopicDriver changes with a driver's counts.
func TopicDriver(id string) Topic { return Topic(driverKey(id)) }

// watchers are the callers that wait for a change. The zero value is ready.
type watchers struct {
	mu      sync.Mutex
	waiting map[Topic]map[*watcher]struct{}
}

type watcher struct {
	topics []Topic
	fired  chan struct{}
	stop   func() bool // of the context's callback
}

// watch returns a channel that is closed by the next change of one of the topics, and when ctx ends.
func (w *watchers) watch(ctx context.Context, topics []Topic) <-chan struct{} {
	one := &watcher{topics: topics, fired: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting == nil {
		w.waiting = map[Topic]map[*watcher]struct{}{}
	}
	for _, t := range topics {
		if w.waiting[t] == nil {
			w.waiting[t] = map[*watcher]struct{}{}
		}
		w.waiting[t][one] = struct{}{}
	}
	one.stop = context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.fire(one)
	})
	return one.fired
}

// fire closes a watcher's channel once and removes the watcher. w.mu is held.
func (w *watchers) fire(one *watcher) {
	select {
	case <-one.fired:
		return
	default:
	}
	close(one.fired)
	one.stop()
	for _, t := range one.topics {
		delete(w.waiting[t], one)
		if len(w.waiting[t]) == 0 {
			delete(w.waiting, t)
		}
	}
}

// publish wakes the watchers of the topics.
func (w *watchers) publish(topics map[Topic]struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for t := range topics {
		for one := range w.waiting[t] {
			w.fire(one)
		}
	}
}

// publishAll wakes all watchers: after a restore, or at the end.
func (w *watchers) publishAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, waiting := range w.waiting {
		for one := range waiting {
			w.fire(one)
		}
	}
}

// changes has the index at which each topic changed last, in memory only. A topic that it does not have changed at
// floor at the latest. So an index is never too low; one that is too high costs a reader one needless read.
type changes struct {
	mu    sync.Mutex
	floor uint64
	at    map[Topic]uint64
}

// maxChanges bounds the topics that are remembered, about 100 bytes each.
const maxChanges = 1 << 15

// reset forgets everything: all topics changed at index or before.
func (c *changes) reset(index uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.floor, c.at = index, map[Topic]uint64{}
}

// note records that topics changed, at index at the latest.
func (c *changes) note(topics map[Topic]struct{}, index uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.at)+len(topics) > maxChanges {
		c.floor, c.at = index, map[Topic]uint64{}
	}
	for t := range topics {
		c.at[t] = index
	}
}

// last returns the index at which one of the topics changed last.
func (c *changes) last(topics []Topic) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	var last uint64
	for _, t := range topics {
		at, known := c.at[t]
		if !known {
			at = c.floor
		}
		last = max(last, at)
	}
	return last
}

// ChangedAt returns an index after which none of the topics has changed. Call it before reading, so that what is
// read is at least as new.
func (s *Store) ChangedAt(topics ...Topic) uint64 { return s.changes.last(slices.Clip(topics)) }
