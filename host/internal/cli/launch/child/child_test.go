package child

import (
	"slices"
	"testing"
)

func TestBelow(t *testing.T) {
	// The kernel escapes only blanks, tabs, newlines and backslashes.
	const table = `1 0 0:1 / / rw - ext4 /dev/a rw
2 1 0:2 / /data rw shared:1 - tmpfs none rw
3 2 0:3 / /data/a\040b\134040 rw - tmpfs none rw
4 1 0:4 / /database rw - tmpfs none rw
` + "5 2 0:5 /of\ra\u00a0folder /data/of\ra\u00a0folder rw - ext4 /dev/a rw\n"
	got := below("/data", table)
	if want := []string{"/data", `/data/a b\040`, "/data/of\ra\u00a0folder"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
