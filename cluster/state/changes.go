package state

import (
	"slices"
	"sync"
)

// changes knows at which entry each topic changed last. It is in memory only: a topic that
// it does not know changed at floor at the latest. So an index that it tells is never too
// low; one that is too high costs a reader one look in vain.
type changes struct {
	mu    sync.Mutex
	floor uint64
	at    map[Topic]uint64
}

// maxChanges bounds the topics that are remembered, some 100 bytes each.
const maxChanges = 1 << 15

// reset forgets all: whatever changed did so at index or before.
func (c *changes) reset(index uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.floor, c.at = index, map[Topic]uint64{}
}

// note remembers that topics changed, at index at the latest.
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

// last is the entry at which one of the topics changed last.
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

// ChangedAt is an index of the log after which none of the topics has changed. Ask for it
// before reading: so what is read is at least as new.
func (s *Store) ChangedAt(topics ...Topic) uint64 { return s.changes.last(slices.Clip(topics)) }
