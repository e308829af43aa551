package signing

import (
	"fmt"
	"slices"
	"testing"
)

// Whoever serves plugins writes their sums: what is read of them is what a second reader finds.
func FuzzSums(f *testing.F) {
	f.Add([]byte("0123456789abcdef0123456789ABCDEF0123456789abcdef0123456789abcdef *a file\r\n\n"))
	f.Add([]byte("000000000000000000000000000000000000000000000000\x80000000000000000  0"))
	f.Fuzz(func(t *testing.T, text []byte) {
		sums, err := ParseSums(text)
		if err != nil {
			return
		}
		var again []byte
		for _, s := range sums {
			again = fmt.Appendf(again, "%s  %s\n", s.SHA256, s.File)
		}
		if got, err := ParseSums(again); err != nil || !slices.Equal(got, sums) {
			t.Errorf("%q is read as %q, and that as %q, %v", text, sums, got, err)
		}
	})
}

// A signature that somebody else wrote is read or refused.
func FuzzSignature(f *testing.F) {
	f.Add([]byte("untrusted comment: x\nRUQ=\ntrusted comment: timestamp:1\tfile:a_v1.0.0\thashed\nAAAA\n"))
	f.Fuzz(func(_ *testing.T, text []byte) { _, _ = parse(text) })
}
