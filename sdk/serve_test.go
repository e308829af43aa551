package sdk

import "testing"

// A plugin takes the newest version that the host has, too, and the oldest if there is none.
func TestCommonVersion(t *testing.T) {
	for hosts, want := range map[string]int{
		"1": 1, "1,2": 1, "2,1": 1, "2": 1, "": 1,
	} {
		if got := commonVersion(hosts); got != want {
			t.Errorf("a host with %q: version %d, want %d", hosts, got, want)
		}
	}
}
