package state

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// Reindex copies a snapshot and gives it another index, so that it is newer than whatever
// ledger it replaces. All of it is checked on the way: what was copied can be
// restored. It returns the index that the snapshot had. The error is ErrBadSnapshot where it is
// none.
func Reindex(w io.Writer, r io.Reader, index uint64) (before uint64, err error) {
	sum := crc32.New(castagnoli)
	out := bufio.NewWriterSize(io.MultiWriter(w, sum), 64<<10)
	header := append([]byte(snapshotMagic), snapshotVersion)
	if _, err := out.Write(binary.BigEndian.AppendUint64(header, index)); err != nil {
		return 0, fmt.Errorf("copy a snapshot of the ledger: %w", err)
	}
	var order order
	before, err = readSnapshot(r, func(kind byte, value []byte) error {
		key, _, err := keysOf(kind, value, whole)
		if err != nil {
			return err
		}
		if err := order.next(key); err != nil {
			return err
		}
		_, err = out.Write(append(binary.AppendUvarint([]byte{kind}, uint64(len(value))), value...))
		return err
	})
	if err == nil {
		err = errors.Join(out.WriteByte(frameEnd), out.Flush())
	}
	if err == nil {
		_, err = w.Write(sum.Sum(nil))
	}
	if err != nil {
		return 0, fmt.Errorf("copy a snapshot of the ledger: %w", err)
	}
	return before, nil
}
