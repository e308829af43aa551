package compaction

import (
	"fmt"
	"testing"

	"github.com/dgraph-io/badger/v4"
	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/test/lib/check"
)

// What is overwritten again and again neither grows the database nor makes reads look into many tables.
func TestOverwritten(t *testing.T) {
	options := Options(badger.DefaultOptions(t.TempDir()).WithLogger(nil).WithMemTableSize(2 << 20).
		WithValueThreshold(64 << 10))
	db, err := badger.Open(options)
	check.NoError(t, err)
	defer db.Close()
	c := Follow(db, hclog.NewNullLogger())
	defer c.Close()
	value := make([]byte, 16<<10)
	for round := range 200 { // 50 MiB, of which a quarter counts
		check.NoError(t, db.Update(func(tx *badger.Txn) error {
			for key := range 8 {
				if err := tx.Set(fmt.Appendf(nil, "key-%d", key), append(value, byte(round))); err != nil {
					return err
				}
			}
			return nil
		}))
		check.NoError(t, db.Update(func(tx *badger.Txn) error {
			for key := range 8 {
				if err := tx.Set(fmt.Appendf(nil, "other-%d", key), value); err != nil {
					return err
				}
			}
			return nil
		}))
		c.Wrote()
	}
	check.Eventually(t, "it is compacted", func() bool { return !due(db.Levels()) })
	size := int64(0)
	for _, l := range db.Levels() {
		size += l.Size
	}
	if size > 12<<20 {
		t.Errorf("it has %d MiB:\n%s", size>>20, db.LevelsToString())
	}
	check.NoError(t, db.View(func(tx *badger.Txn) error {
		item, err := tx.Get([]byte("key-3"))
		if err != nil {
			return err
		}
		return item.Value(func(v []byte) error {
			if v[len(v)-1] != 199 {
				return fmt.Errorf("it has the value of round %d", v[len(v)-1])
			}
			return nil
		})
	}))
}

func TestDue(t *testing.T) {
	for _, c := range []struct {
		tables       int
		first, below int64
		want         bool
	}{
		{0, 0, 0, false},
		{4, 16, 0, false},
		{5, 20, 160, true},
		{5, 20, 161, false},
		{9, 36, 1000, false},
		{10, 40, 1000, true},
	} {
		levels := []badger.LevelInfo{{NumTables: c.tables, Size: c.first}, {Size: 1}, {Size: c.below - 1}}
		if c.below == 0 {
			levels = levels[:1]
		}
		if got := due(levels); got != c.want {
			t.Errorf("%d tables of %d above %d: %v", c.tables, c.first, c.below, got)
		}
	}
}
