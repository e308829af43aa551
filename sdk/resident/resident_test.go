package resident

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
)

// Trim unmaps most of the program, which then goes on.
func TestTrim(t *testing.T) {
	before := mapped(t)
	if err := Trim(); err != nil {
		t.Fatal(err)
	}
	if after := mapped(t); after > before*3/4 {
		t.Errorf("%d KiB of the program are mapped after Trim, and were %d before", after, before)
	}
}

// Trim also returns what only a pool still holds.
func TestTrimEmptiesPools(t *testing.T) {
	var pool sync.Pool
	for range 2 { // the first one is for the same processor only, which may be another one after a collection
		pool.Put(new([1 << 20]byte))
	}
	if err := Trim(); err != nil {
		t.Fatal(err)
	}
	if pool.Get() != nil {
		t.Error("the pool still holds a buffer after Trim")
	}
}

// mapped returns how much is mapped from files, in KiB.
func mapped(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`RssFile:\s*(\d+) kB`).FindSubmatch(status)
	if m == nil {
		t.Fatalf("the kernel does not say what is mapped from files: %s", status)
	}
	kib, err := strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return kib
}

// What was changed in memory, or can be, is never unmapped, nor what is not of the program.
func TestMappings(t *testing.T) {
	const smaps = `00400000-00500000 r-xp 00000000 08:01 42 /usr/bin/program
Size:               1024 kB
Rss:                 512 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
00500000-00600000 r--p 00100000 08:01 42 /usr/bin/program
Anonymous:             4 kB
00600000-00700000 r--p 00200000 08:01 42                                 /usr/bin/program
Anonymous:             0 kB
00700000-00800000 rw-p 00300000 08:01 42 /usr/bin/program
Anonymous:             0 kB
00800000-00900000 r--p 00000000 08:01 43 /usr/lib/program
Anonymous:             0 kB
00900000-00a00000 rw-p 00000000 00:00 0
Anonymous:             0 kB
`
	want := []mapping{{0x400000, 0x500000}, {0x600000, 0x700000}}
	if got := mappings([]byte(smaps), "/usr/bin/program"); !slices.Equal(got, want) {
		t.Errorf("to be unmapped: %x, want %x", got, want)
	}
}
