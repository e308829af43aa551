// Package compaction compacts a Badger database after writes. Badger's own compactors look for work 20 times a second
// each, which is most of what an idle agent does.
package compaction

import (
	"math"
	"sync"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/hashicorp/go-hclog"
)

const (
	// fewTables is how many tables of level 0, each a memtable, are worth a compaction: Badger's own number.
	fewTables = 5
	// share is the part of the database that level 0 may be before that. A compaction rewrites all of it at worst.
	share = 8
	// manyTables are compacted in any case, since each is looked into by every read.
	manyTables = 10
	// pause is the least time between two looks.
	pause = 100 * time.Millisecond
)

// Options turns Badger's compactors off. The database then needs a Compactor.
func Options(options badger.Options) badger.Options {
	// Writers must not wait for level 0: before Follow is called, nothing empties it.
	return options.WithNumCompactors(0).WithNumLevelZeroTablesStall(math.MaxInt32)
}

// Compactor compacts one database.
type Compactor struct {
	db      *badger.DB
	log     hclog.Logger
	wrote   chan struct{}
	stopped chan struct{}
	stop    func() // closes stopped, once
	ended   sync.WaitGroup
}

// Follow makes the compactor of a database that was opened with Options. Close it before the database.
func Follow(db *badger.DB, log hclog.Logger) *Compactor {
	c := &Compactor{db: db, log: log, wrote: make(chan struct{}, 1), stopped: make(chan struct{})}
	c.stop = sync.OnceFunc(func() { close(c.stopped) })
	c.ended.Go(c.run)
	return c
}

// Wrote reports a write. It does not wait.
func (c *Compactor) Wrote() {
	select {
	case c.wrote <- struct{}{}:
	default:
	}
}

// Close waits for a compaction that runs. It may be called again.
func (c *Compactor) Close() {
	c.stop()
	c.ended.Wait()
}

func (c *Compactor) run() {
	for next := time.Now(); ; next = time.Now().Add(pause) {
		select {
		case <-c.stopped:
			return
		case <-c.wrote:
		}
		if wait := time.Until(next); wait > 0 {
			select {
			case <-c.stopped:
				return
			case <-time.After(wait):
			}
		}
		if !due(c.db.Levels()) {
			continue
		}
		if err := c.db.Flatten(1); err != nil {
			c.log.Warn("the database was not compacted; this is tried again after the next write", "error", err)
		}
	}
}

// due reports whether level 0 is worth a compaction.
func due(levels []badger.LevelInfo) bool {
	below := int64(0)
	for _, l := range levels[1:] {
		below += l.Size
	}
	first := levels[0]
	return first.NumTables >= fewTables && first.Size*share >= below || first.NumTables >= manyTables
}
