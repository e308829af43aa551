package trend

import (
	"bytes"
	"context"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
)

// store is a state with the bounds of the host's.
type store map[string][]byte

func (s store) Get(_ context.Context, key string) ([]byte, bool, error) {
	value, found := s[key]
	return value, found, nil
}

func (s store) CompareAndSwap(_ context.Context, key string, expected, value []byte) (bool, error) {
	if !bytes.Equal(s[key], expected) {
		return false, nil
	}
	s[key] = value
	return true, nil
}

// The ring has the last day, fits into a value of the state, and has one sample for each interval, whoever adds them.
func TestRing(t *testing.T) {
	s := store{}
	r := Ring{Store: s}
	const start = 1_800_000_000
	every := int64(Every.Seconds())
	for n := range int64(3 * samples) {
		p := Sample{At: start + n*every, Used: 1 << 62, Size: 1<<63 + 1, Ledger: 1 << 61, Stalled: 1 << 40}
		check.NoError(t, r.Add(t.Context(), p))
		check.NoError(t, r.Add(t.Context(), Sample{At: p.At + 1}))
	}
	all := check.Must(r.Read(t.Context()))(t)
	if len(all) != samples || all[0].At != start+int64(2*samples)*every || all[len(all)-1].Used != 1<<62 {
		t.Errorf("%d samples, from %v to %v", len(all), all[0], all[len(all)-1])
	}
	if size := len(s[key]); size > 32<<10 {
		t.Errorf("the ring has %d bytes, more than a value of the state may have", size)
	}
	// After a pause nothing older than a day is left.
	check.NoError(t, r.Add(t.Context(), Sample{At: all[len(all)-1].At + 2*int64(Span.Seconds())}))
	if all = check.Must(r.Read(t.Context()))(t); len(all) != 1 {
		t.Errorf("%d samples after two days", len(all))
	}
	s[key] = []byte("not a ring")
	check.NoError(t, r.Add(t.Context(), Sample{At: 1}))
	if all = check.Must(r.Read(t.Context()))(t); len(all) != 1 {
		t.Errorf("%d samples in place of what cannot be read", len(all))
	}
}
