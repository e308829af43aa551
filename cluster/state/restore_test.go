package state

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pannier/pannier/cluster/backup"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/codec"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/check"
)

// framed returns a snapshot with the given records.
func framed(index uint64, values ...[]byte) []byte {
	var out bytes.Buffer
	out.Write(backup.SnapshotHead(index))
	for _, v := range values {
		_ = backup.WriteRecord(&out, volumes[0], v) // never fails
	}
	return append(out.Bytes(), backup.SnapshotEnd)
}

func encoded[T any](t testing.TB, v T) []byte {
	t.Helper()
	data, err := codec.Marshal(v)
	check.NoError(t, err)
	return data
}

// TestRestoreOfManyTables restores more data than one of Badger's tables holds into an unencrypted and an encrypted
// ledger.
func TestRestoreOfManyTables(t *testing.T) {
	const many = 20_000
	want := map[string]string{}
	values := make([][]byte, many)
	for i := range values {
		v := volume(fmt.Sprintf("v%06d", i), claim.SingleNodeWriter)
		v.PluginID = strings.Repeat("d", 120)
		if i == many/2 {
			v.Parameters = map[string]string{"big": strings.Repeat("x", command.MaxSize)}
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
			check.NoError(t, err)
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
			check.NoError(t, l.Close())
			if l.Store, err = Open(dir, nil, options...); err != nil {
				t.Fatal(err)
			}
			l.sameAs(changed, "opened again")
		})
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// onlyGeneration checks that no other generation is left.
func onlyGeneration(t *testing.T, dir string, number int) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "db-*"))
	if err != nil || !slices.Equal(found, []string{filepath.Join(dir, generationName(number))}) {
		t.Errorf("there are %v (%v)", found, err)
	}
}

// TestRestoreRefusesOthers restores a snapshot that is whole but that no ledger would write.
func TestRestoreRefusesOthers(t *testing.T) {
	a := encoded(t, volume("a", claim.SingleNodeWriter))
	long := volume(strings.Repeat("l", 65_500), claim.SingleNodeWriter)
	big := volume("big", claim.SingleNodeWriter)
	big.Parameters = map[string]string{"big": strings.Repeat("x", 700<<10)}
	next := framed(9, a)
	next[len(backup.SnapshotHead(0))-9]++
	l := filled(t)
	before := l.records()
	for name, row := range map[string]struct {
		data []byte
		says string
	}{
		"no record":        {framed(9, a, []byte("{")), `a record of the kind 'v'`},
		"a long key":       {framed(9, a, encoded(t, long)), "is longer than 128 characters"},
		"a key with parts": {framed(9, a, encoded(t, volume("a/b", claim.SingleNodeWriter))), `the character '/'`},
		"a big record":     {framed(9, a, encoded(t, big)), "a record of 71"},
		"the last index":   {framed(1<<64-1, a), "its index is 18446744073709551615"},
		"the next version": {next, "version 2, this program knows 1"},
	} {
		_, copied := Reindex(io.Discard, bytes.NewReader(row.data), 10)
		for what, err := range map[string]error{"restored": l.Restore(bytes.NewReader(row.data)), "copied": copied} {
			if !errors.Is(err, backup.ErrBadSnapshot) || !strings.Contains(err.Error(), row.says) {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
	}
	l.sameAs(before, "a snapshot that is none")
	onlyGeneration(t, l.dir, 0)
}
