package lease

import (
	"errors"
	"strings"
	"testing"

	"github.com/pannier/pannier/host/internal/fencing/boottime"
)

// A node that has joined and is down until its first lease has lost none, and nothing of it was released.
func TestNoFirstLeaseYet(t *testing.T) {
	const why = "the servers consider this node down and have released its claims"
	l := newLease(t, &noted{})
	must(t, l.Expire(t.Context(), why))
	if err := l.Valid(); !errors.Is(err, ErrNoLease) || !strings.Contains(err.Error(), "has not got its first lease yet") {
		t.Errorf("before the first lease: %v", err)
	}
	must(t, l.Renew(t.Context(), boottime.Now(), long))
	must(t, l.Expire(t.Context(), why))
	if err := l.Valid(); !errors.Is(err, ErrNoLease) || !strings.Contains(err.Error(), why) {
		t.Errorf("after it: %v", err)
	}
}
