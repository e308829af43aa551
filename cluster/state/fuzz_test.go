package state

import (
	"bytes"
	"testing"
)

// FuzzReadSnapshot reads anything as a snapshot: it may refuse, not panic, and
// what it takes is whole.
func FuzzReadSnapshot(f *testing.F) {
	good := snapshot(f, filled(f))
	f.Add(good)
	f.Add(good[:headerSize])
	f.Add([]byte(snapshotMagic))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, err := readSnapshot(bytes.NewReader(data), func(kind byte, value []byte) error {
			_, _, err := keysOf(kind, value, whole)
			return err
		})
		if err == nil && !bytes.HasPrefix(data, good[:len(snapshotMagic)]) {
			t.Fatalf("taken as a snapshot: %q", data)
		}
	})
}
