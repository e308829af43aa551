package state

import (
	"bytes"
	"testing"
)

// FuzzReadSnapshot reads arbitrary data as a snapshot. It may be refused, but must not cause a panic, and an
// accepted snapshot is complete.
func FuzzReadSnapshot(f *testing.F) {
	good := snapshot(f, filled(f))
	f.Add(good)
	f.Add(good[:headerSize])
	f.Add([]byte(snapshotMagic))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, err := readSnapshot(bytes.NewReader(data), func(kind byte, value []byte) error {
			_, _, err := keysOf(kind, value)
			return err
		})
		if err == nil && !bytes.HasPrefix(data, good[:len(snapshotMagic)]) {
			t.Fatalf("accepted as a snapshot: %q", data)
		}
	})
}
