package sdk

import "testing"

func TestBuildVersion(t *testing.T) {
	for stamped, want := range map[string]string{
		"v1.2.3":                       "1.2.3",
		"1.2.3":                        "1.2.3",
		"v1.2.3-rc.1":                  "1.2.3-rc.1",
		"v1.2.3-dirty":                 "1.2.3+dirty",
		"v1.2.3-4-gabcdef0":            "1.2.3+4-gabcdef0",
		"v1.2.3-rc.1-4-gabcdef0-dirty": "1.2.3-rc.1+4-gabcdef0-dirty",
		"v0.0.0-20261122115000-32669e92d4d1+dirty": "0.0.0-20261122115000-32669e92d4d1+dirty",
		"32669e9":       "0.0.0+32669e9",
		"32669e9-dirty": "0.0.0+32669e9-dirty",
		"(devel)":       "0.0.0+devel",
		"unknown":       "0.0.0+unknown",
	} {
		if got := BuildVersion(stamped); got != want {
			t.Errorf("%q: %q, want %q", stamped, got, want)
		}
	}
	if got := BuildVersion(""); got == "" || got == "0.0.0+" {
		t.Errorf("a build without a stamp: %q", got)
	}
}
