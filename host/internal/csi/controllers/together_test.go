package controllers

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/sdk/storage"
)

// together are volumes with a claim on n2 each.
func together(n int) (volumes []claim.Volume, of []claim.Claim) {
	for i := range n {
		v := vol
		v.ID, v.ExternalID = fmt.Sprint("v-", i), fmt.Sprint("ext-", i)
		volumes, of = append(volumes, v), append(of, claim.Claim{Volume: v.VolumeRef, Node: "n2", DriverNodeID: "driver-n2"})
	}
	of[n-1].DriverNodeID = "" // an older claim: the node's report has it
	return volumes, of
}

// TestDetachTogether checks that volumes share a call of one node, without those that are still needed there or have
// another call.
func TestDetachTogether(t *testing.T) {
	c, m := openMany("n2", "n3")
	failed := status.Error(codes.Internal, "no")
	for _, p := range m.plugins {
		p.results = []error{nil, failed, nil}
	}
	volumes, of := together(5)
	unlock := c.attachments.TryLock(attachment{volumes[1].VolumeRef, "n2"})
	asked := 0
	errs := c.DetachTogether(t.Context(), volumes, of, func(context.Context) ([]bool, error) {
		asked++
		for i := range volumes {
			if c.attachments.Users(attachment{volumes[i].VolumeRef, "n2"}) != 1 {
				t.Errorf("an attach of volume %d could come in between", i)
			}
		}
		return []bool{2: true, 4: false}, nil
	})
	if asked != 1 || errs[0] != nil || !errors.Is(errs[1], errBusy) || errs[2] != nil || !errors.Is(errs[3], failed) ||
		errs[4] != nil {
		t.Errorf("asked %d times, got %v", asked, errs)
	}
	unlock()
	var batches [][]storage.Detachment
	for _, p := range m.plugins {
		batches = append(batches, p.batches...)
	}
	if len(batches) != 1 || len(batches[0]) != 3 {
		t.Fatalf("calls: %+v", batches)
	}
	for n, id := range []string{"ext-0", "ext-3", "ext-4"} {
		if got := batches[0][n]; got.Volume.ExternalID != id || got.NodeID != "driver-n2" {
			t.Errorf("%d: %+v", n, got)
		}
	}
	for i := range volumes { // nothing is locked any more
		unlock, err := c.attachments.Lock(t.Context(), attachment{volumes[i].VolumeRef, "n2"})
		if err != nil {
			t.Fatal(err)
		}
		unlock()
	}
}

// TestDetachTogetherFails checks that no volume passes for detached where the call, or the question before it, fails.
func TestDetachTogetherFails(t *testing.T) {
	none := func(context.Context) ([]bool, error) { return make([]bool, 3), nil }
	for name, tc := range map[string]struct {
		answer error
		needed func(context.Context) ([]bool, error)
	}{
		"an older plugin":       {status.Error(codes.Unimplemented, "unknown method"), none},
		"no node is there":      {status.Error(codes.Unavailable, "away"), none},
		"it leads no more":      {nil, func(context.Context) ([]bool, error) { return nil, errors.New("not the leader") }},
		"the plugin is stopped": {status.Error(codes.Canceled, "stopped"), none},
	} {
		t.Run(name, func(t *testing.T) {
			c, m := openMany("n2", "n3")
			for _, p := range m.plugins {
				p.err, p.results = tc.answer, make([]error, 3)
			}
			volumes, of := together(3)
			for i, err := range c.DetachTogether(t.Context(), volumes, of, tc.needed) {
				if err == nil {
					t.Errorf("volume %d passes for detached", i)
				}
			}
		})
	}
}

// TestDetachTogetherThatHangs checks that no attach comes in between while the driver may still detach.
func TestDetachTogetherThatHangs(t *testing.T) {
	c, m := openMany("n2")
	p := m.plugins["n2"]
	p.entered, p.proceed, p.results = make(chan string), make(chan struct{}), make([]error, 2)
	volumes, of := together(2)
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the term has ended")
	ended := make(chan []error)
	go func() {
		ended <- c.DetachTogether(ctx, volumes, of, func(context.Context) ([]bool, error) { return make([]bool, 2), nil })
	}()
	<-p.entered
	cancel(gone)
	for i, err := range <-ended {
		if !errors.Is(err, gone) {
			t.Errorf("volume %d: %v", i, err)
		}
		if unlock := c.attachments.TryLock(attachment{volumes[i].VolumeRef, "n2"}); unlock != nil {
			t.Errorf("volume %d may be attached while it is being detached", i)
			unlock()
		}
	}
	close(p.proceed)
	for i := range volumes {
		unlock, err := c.attachments.Lock(t.Context(), attachment{volumes[i].VolumeRef, "n2"})
		if err != nil {
			t.Fatal(err)
		}
		unlock()
	}
}
