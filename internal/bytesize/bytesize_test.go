package bytesize

import "testing"

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"0": 0, "1": 1, "1 KiB": 1 << 10, "500MB": 500e6, "1.5GiB": 3 << 29, "10gib": 10 << 30, "7EiB": 7 << 60,
	} {
		if got, err := Parse(text); err != nil || got != want {
			t.Errorf("%q is %d (%v), not %d", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "GiB", "1,5GiB", "1,,5G", ",1B", "1,024", "-1GiB", "+1GiB", "1.2.3GiB", "1GiBs", "0x10", "8EiB", "99999999999999999999EB", "NaN", "Inf",
	} {
		if got, err := Parse(text); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
}

// FuzzParse: whatever is accepted is a size that can be stored.
func FuzzParse(f *testing.F) {
	f.Add("1.5GiB")
	f.Add("18446744073709551615")
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := Parse(text); n < 0 || err != nil && n != 0 {
			t.Errorf("%q is %d (%v)", text, n, err)
		}
	})
}
