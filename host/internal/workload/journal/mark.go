package journal

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"os"

	"github.com/dgraph-io/badger/v4"

	"github.com/pannier/pannier/cluster/badgerfiles"
	"github.com/pannier/pannier/host/internal/system/process"
)

// Checksums do not show what Badger drops silently: tables that a truncated manifest does not name, and the end of a
// memtable. So each transaction writes a digest of all records, whose version in Badger grows with each; the highest
// version is in a file of its own, the mark. A journal with another digest, or behind its mark, has lost something.
// Only the mark of this boot counts, since a loss of power may undo the last writes.

// digest is a digest of a set of records: their hashes, combined by exclusive or, so that their order does not count.
type digest [sha256.Size]byte

// toggle adds a record, or removes it if it is in the set.
func (d *digest) toggle(key, value []byte) {
	of := sha256.Sum256(fmt.Appendf(nil, "%d %s%s", len(key), key, value))
	subtle.XORBytes(d[:], d[:], of[:])
}

// sumKey is the key of the digest. No bucket has an empty name.
var sumKey = []byte("\x00digest")

func markPath(dir string) string { return dir + ".mark" }

// markOf formats the mark, which always has the same length.
func markOf(version uint64) string { return fmt.Sprintf("%s %020d\n", process.BootID(), version) }

// openMark reads all records and compares them with the digest and the mark. The error is a *badgerfiles.Damage if
// something was lost.
func (j *Journal) openMark() (err error) {
	var stored []byte
	if err := j.db.View(func(txn *badger.Txn) error {
		it := txn.NewIterator(badger.IteratorOptions{})
		defer it.Close()
		for it.Rewind(); it.Valid(); it.Next() {
			key := it.Item().KeyCopy(nil)
			value, err := it.Item().ValueCopy(nil)
			if err != nil {
				return err
			}
			if string(key) == string(sumKey) {
				stored, j.version = value, it.Item().Version()
			} else {
				j.sum.toggle(key, value)
			}
		}
		return nil
	}); err != nil {
		return &badgerfiles.Damage{File: j.dir, Err: err}
	}
	before, err := os.ReadFile(markPath(j.dir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	boot := len(markOf(0)) - len("00000000000000000000\n")
	switch {
	case len(before) != len(markOf(0)) || string(before[:boot]) != markOf(0)[:boot]: // of another boot, or a new one
	case string(before) > markOf(j.version):
		return &badgerfiles.Damage{File: j.dir, Err: fmt.Errorf("it is at version %d, and was at %s before", j.version,
			before[boot:len(before)-1])}
	case j.version > 0 && string(stored) != string(j.sum[:]):
		return &badgerfiles.Damage{File: j.dir, Err: errors.New("some of its records are lost or older than others")}
	}
	if j.mark, err = os.OpenFile(markPath(j.dir), os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
		return err
	}
	return errors.Join(j.writeMark(), j.mark.Truncate(int64(len(markOf(j.version)))))
}

func (j *Journal) writeMark() error {
	_, err := j.mark.WriteAt([]byte(markOf(j.version)), 0)
	return err
}
