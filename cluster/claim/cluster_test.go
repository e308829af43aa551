package claim_test

import (
	"errors"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster/claim"
)

func TestAutopilotIsChangedFieldByField(t *testing.T) {
	off, second, minute, five := false, time.Second, time.Minute, 5
	before := claim.DefaultAutopilot()
	after, err := before.Change(claim.AutopilotChange{})
	if err != nil || after != before {
		t.Errorf("changed by nothing: %+v, %v", after, err)
	}
	after, err = before.Change(claim.AutopilotChange{
		CleanupDeadServers: &off, LastContactThreshold: &second,
		ServerStabilizationTime: &minute, MinQuorum: &five,
	})
	want := claim.Autopilot{
		LastContactThreshold: second, ServerStabilizationTime: minute, MinQuorum: 5,
		MaxTrailingLogs: before.MaxTrailingLogs,
	}
	if err != nil || after != want {
		t.Errorf("changed to %+v, %v, want %+v", after, err, want)
	}
}

func TestAutopilotIsInBounds(t *testing.T) {
	never, negative, many, fewer := time.Duration(0), -time.Second, claim.MaxServers+1, -1
	for name, test := range map[string]struct {
		change claim.AutopilotChange
		field  string
	}{
		"no contact":       {claim.AutopilotChange{LastContactThreshold: &never}, "last_contact_threshold"},
		"less than none":   {claim.AutopilotChange{LastContactThreshold: &negative}, "last_contact_threshold"},
		"no stabilization": {claim.AutopilotChange{ServerStabilizationTime: &never}, "server_stabilization_time"},
		"too many voters":  {claim.AutopilotChange{MinQuorum: &many}, "min_quorum"},
		"too few voters":   {claim.AutopilotChange{MinQuorum: &fewer}, "min_quorum"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := claim.DefaultAutopilot().Change(test.change)
			var bad *claim.FieldError
			if !errors.As(err, &bad) || bad.Field != test.field {
				t.Errorf("refused as %v, want %s", err, test.field)
			}
		})
	}
}
