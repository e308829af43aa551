package state

import (
	"bytes"
	"testing"

	"github.com/pannier/pannier/cluster/backup"
)

// FuzzReadSnapshot reads arbitrary data as a snapshot. It may be refused, but must not cause a panic, and an
// accepted snapshot is complete.
func FuzzReadSnapshot(f *testing.F) {
	good := snapshot(f, filled(f))
	f.Add(good)
	head := len(backup.SnapshotHead(0))
	f.Add(good[:head])
	f.Add(good[:head-9])
	f.Fuzz(func(t *testing.T, data []byte) {
		_, err := backup.Records(bytes.NewReader(data), func(kind byte, value []byte) error {
			_, _, err := keysOf(kind, value)
			return err
		})
		if err == nil && !bytes.HasPrefix(data, good[:head-9]) {
			t.Fatalf("accepted as a snapshot: %q", data)
		}
	})
}
