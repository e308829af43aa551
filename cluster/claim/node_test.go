package claim_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster/claim"
)

func TestLivenessIsInOrder(t *testing.T) {
	for name, row := range map[string]struct {
		l     claim.Liveness
		field string // empty: the value is valid
	}{
		"as by default": {claim.Liveness{
			HeartbeatTTL: 30 * time.Second, StopAfter: time.Minute,
			Margin: 30 * time.Second,
		}, ""},
		"nothing":           {claim.Liveness{}, "heartbeat_ttl"},
		"stops before":      {claim.Liveness{HeartbeatTTL: 2, StopAfter: 1, Margin: 1}, "stop_after"},
		"no margin":         {claim.Liveness{HeartbeatTTL: 1, StopAfter: 2}, "stop_margin"},
		"a negative margin": {claim.Liveness{HeartbeatTTL: 1, StopAfter: 2, Margin: -1}, "stop_margin"},
	} {
		err := row.l.Validate()
		var wrong *claim.FieldError
		if row.field == "" && err != nil || row.field != "" && (!errors.As(err, &wrong) || wrong.Field != row.field) {
			t.Errorf("%s: %v, want one of %q", name, err, row.field)
		}
	}
}

func TestBounds(t *testing.T) {
	held := claim.Claim{
		Volume: claim.VolumeRef{Namespace: "default", ID: "v"}, Workload: claim.WorkloadRef{
			Namespace: "default",
			ID:        "w",
		}, Node: "n",
		Mode: claim.Read, AccessMode: claim.MultiNodeReaderOnly, AttachmentMode: claim.FileSystem,
		DriverNodeID: strings.Repeat("x", 256),
	}
	if err := held.Validate(); err != nil {
		t.Error(err)
	}
	held.DriverNodeID += "x"
	if err := held.Validate(); !errors.Is(err, claim.ErrInvalid) {
		t.Errorf("a driver's id of 257 bytes: %v", err)
	}
	if err := claim.CheckBy(strings.Repeat("x", 256)); err != nil {
		t.Error(err)
	}
	if err := claim.CheckBy(strings.Repeat("x", 257)); !errors.Is(err, claim.ErrInvalid) {
		t.Errorf("an operator's name of 257 bytes: %v", err)
	}
}
