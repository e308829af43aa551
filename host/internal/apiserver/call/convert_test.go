package call

import (
	"slices"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func TestRedact(t *testing.T) {
	o := &hostv1.MountOptions{MountFlags: []string{
		"noatime", "vers=4.2,uid=5", "PASSWORD=a,b", "uid=5,secretfile=/x", "credentials=/y,ro", "password", "",
	}}
	Redact(o)
	want := []string{
		"noatime", "vers=4.2,uid=5", "PASSWORD=[REDACTED]", "uid=5,secretfile=[REDACTED]", "credentials=[REDACTED]", "password", "",
	}
	if !slices.Equal(o.MountFlags, want) {
		t.Errorf("%q, want %q", o.MountFlags, want)
	}
}
