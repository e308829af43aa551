package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/codec"
	"github.com/pannier/pannier/cluster/command"
)

// framed returns a snapshot with a valid checksum and the given records.
func framed(index uint64, values ...[]byte) []byte {
	data := binary.BigEndian.AppendUint64(append([]byte(snapshotMagic), snapshotVersion), index)
	for _, v := range values {
		data = append(binary.AppendUvarint(append(data, volumes[0]), uint64(len(v))), v...)
	}
	data = append(data, frameEnd)
	return binary.BigEndian.AppendUint32(data, crc32.Checksum(data, castagnoli))
}

func encoded[T any](t testing.TB, v T) []byte {
	t.Helper()
	data, err := codec.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestRestoreOfManyTables restores more data than one of Badger's tables holds, and more index keys than are
// sorted in memory, into an unencrypted and an encrypted ledger.
func TestRestoreOfManyTables(t *testing.T) {
	const many = 60_000
	want := map[string]string{}
	values := make([][]byte, many)
	for i := range values {
		v := volume(fmt.Sprintf("v%06d", i), claim.SingleNodeWriter)
		// The index keys, some 10 MiB, have a different order than the records.
		v.PluginID = fmt.Sprintf("%s-%06d", strings.Repeat("d", 120), many-i)
		if i == many/2 {
			v.Parameters = map[string]string{"big": strings.Repeat("x", 600<<10)} // a value in Badger's value log
		}
		values[i] = encoded(t, v)
		want[volumeKey(v.VolumeRef)] = string(values[i])
		for _, key := range volumeIndexKeys(&v) {
			want[key] = ""
		}
	}
	data := framed(7, values...)
	for name, options := range map[string][]Option{"plain": nil, "encrypted": {WithKey(bytes.Repeat([]byte("k"), 32))}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s, err := Open(dir, nil, options...)
			if err != nil {
				t.Fatal(err)
			}
			l := &ledger{Store: s, t: t}
			t.Cleanup(func() { _ = l.Close() })
			l.must(&command.RegisterVolume{Volume: volume("old", claim.SingleNodeWriter)})
			before := l.records()
			cut := errors.New("the connection is cut")
			if err := l.Restore(io.MultiReader(bytes.NewReader(data[:len(data)/2]), failing{cut})); !errors.Is(err, cut) {
				t.Fatalf("cut in the middle: %v", err)
			}
			l.sameAs(before, "cut in the middle")
			onlyGeneration(t, dir, 0)

			restore(t, l, data)
			onlyGeneration(t, dir, 1)
			if l.AppliedIndex() != 7 {
				t.Errorf("restored at %d", l.AppliedIndex())
			}
			l.sameAs(want, "restored")
			l.index = l.AppliedIndex()
			l.must(&command.DeregisterVolume{Ref: ref("v000007"), Force: true})
			l.must(&command.RegisterVolume{Volume: volume("v000008", claim.MultiNodeMultiWriter)})
			changed := l.records()
			if len(changed) != len(want)-3 || maps.Equal(changed, want) {
				t.Fatalf("%d keys after a change, had %d", len(changed), len(want))
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if l.Store, err = Open(dir, nil, options...); err != nil {
				t.Fatal(err)
			}
			l.sameAs(changed, "opened again")
		})
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// onlyGeneration checks that no other generation and no files from sorting are left.
func onlyGeneration(t *testing.T, dir string, number int) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "db-*"))
	if err != nil || !slices.Equal(found, []string{filepath.Join(dir, generationName(number))}) {
		t.Errorf("there are %v (%v)", found, err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*", "sort-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
}

// TestRestoreRefusesDisorder restores a snapshot that has a valid checksum but that no ledger would write.
func TestRestoreRefusesDisorder(t *testing.T) {
	a, b := encoded(t, volume("a", claim.SingleNodeWriter)), encoded(t, volume("b", claim.SingleNodeWriter))
	next := framed(9, a)
	next[len(snapshotMagic)]++
	l := filled(t)
	before := l.records()
	for name, row := range map[string]struct {
		data []byte
		says string
	}{
		"in another order": {framed(9, b, a), `"v/default/a" comes after "v/default/b"`},
		"twice the same":   {framed(9, a, b, b), `"v/default/b" comes after "v/default/b"`},
		"no record":        {framed(9, a, []byte("{")), `a record of the kind 'v'`},
		"the next version": {next, "version 2, this program knows 1"},
	} {
		_, copied := Reindex(io.Discard, bytes.NewReader(row.data), 10)
		for what, err := range map[string]error{"restored": l.Restore(bytes.NewReader(row.data)), "copied": copied} {
			if !errors.Is(err, ErrBadSnapshot) || !strings.Contains(err.Error(), row.says) {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
	}
	l.sameAs(before, "a snapshot that is none")
	onlyGeneration(t, l.dir, 0)
}

// TestSorter sorts several runs, one of them empty. A duplicate key is returned once.
func TestSorter(t *testing.T) {
	for name, count := range map[string]int{"nothing": 0, "one run": 10, "several": 3 * runSize / 100} {
		dir := t.TempDir()
		s, err := newSorter(dir)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{}
		for i := range count {
			p := pair{fmt.Sprintf("%0100d", i*7919%count), fmt.Append(nil, i*7919%count)}
			want[p.key] = string(p.value)
			if err := errors.Join(s.add(p), s.add(p)); err != nil {
				t.Fatal(err)
			}
		}
		last := ""
		err = s.each(func(key string, value []byte) error {
			if key <= last || want[key] != string(value) {
				t.Fatalf("%s: %q with %q comes after %q", name, key, value, last)
			}
			last = key
			delete(want, key)
			return nil
		})
		if err := errors.Join(err, s.close()); err != nil || len(want) > 0 {
			t.Errorf("%s: %d are missing (%v)", name, len(want), err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s: left behind: %v (%v)", name, left, err)
		}
	}
}
