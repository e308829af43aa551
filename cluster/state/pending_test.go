package state

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestPending reads a transaction in any state between two commits. Stored, written, overwritten and deleted
// keys are returned in one order, as from a plain map.
func TestPending(t *testing.T) {
	s, err := Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	want := map[string]string{}
	rapid.Check(t, func(t *rapid.T) {
		tx := newWriteTx(s.gen.db)
		defer tx.txn.Discard()
		now := maps.Clone(want)
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			key := fmt.Sprintf("test/%d/%d", rapid.IntRange(0, 2).Draw(t, "group"), rapid.IntRange(0, 9).Draw(t, "key"))
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0, 1:
				value := rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "value")
				tx.put(key, []byte(value))
				now[key] = value
			case 2:
				tx.delete(key)
				delete(now, key)
			default:
				sameSpan(t, tx, now, rapid.IntRange(0, 2).Draw(t, "span"), rapid.IntRange(-1, 9).Draw(t, "after"),
					rapid.IntRange(0, 4).Draw(t, "limit"))
			}
			value, err := tx.get(key)
			stands, found := now[key]
			if err != nil || found != (value != nil) || string(value) != stands {
				t.Fatalf("%s: got %q, %v, want %q, %v", key, value, err, stands, found)
			}
		}
		if err := tx.commit(); err != nil {
			t.Fatal(err)
		}
		want = now
	})
}

func sameSpan(t *rapid.T, tx *writeTx, all map[string]string, group, after, limit int) {
	t.Helper()
	sp := span{base: "test/", sub: fmt.Sprint(group, "/"), limit: limit}
	if after >= 0 {
		sp.after = fmt.Sprintf("%d/%d", group, after)
	}
	var want []string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		part := strings.TrimPrefix(key, sp.base)
		if strings.HasPrefix(part, sp.sub) && part > sp.after && (limit == 0 || len(want) < limit) {
			want = append(want, part+"="+all[key])
		}
	}
	var got []string
	err := tx.scan(sp, true, func(key string, value []byte) error {
		got = append(got, key+"="+string(value))
		return nil
	})
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("%+v: got %q, %v, want %q", sp, got, err, want)
	}
	keys, err := tx.keys(sp)
	if err != nil || len(keys) != len(want) {
		t.Fatalf("%+v: got the keys %q, %v, want %q", sp, keys, err, want)
	}
}
