package servicesteps

import (
	"context"
	"errors"
	"fmt"

	"github.com/pannier/pannier/host/internal/workload/step"
)

// Refused is the error of an undo that Consul refuses: only a change by an operator, or force, ends it.
type Refused struct{ Err error }

func (e *Refused) Error() string { return e.Err.Error() }
func (e *Refused) Unwrap() error { return e.Err }

// leave leaves something in Consul that an attempt within ctx could not undo, where an operator forces the release.
// The ledger keeps the record of a token for the sweep, and the sync of services removes registrations that no
// workload has.
func (s *Steps) leave(ctx context.Context, svc *Service, what, id string, err error) error {
	by, interrupted := svc.workload.ForcedBy(), context.Cause(ctx)
	switch {
	case interrupted != nil && !errors.Is(interrupted, context.DeadlineExceeded):
		return err // it was not tried to the end
	case by == "" && step.Definite(err):
		return &Refused{err}
	case by == "":
		return err
	}
	s.Log.Warn("something of a service is left in Consul, forced by an operator; the sweep removes it when Consul lets it",
		"workload", svc.workload.Ref(), "service", svc.Name, "consul", svc.Consul, what, id, "by", by, "error", err)
	s.eventWith(svc, "left-behind", fmt.Sprintf("the %s %s is left in Consul %q: %v", what, id, svc.Consul, err),
		map[string]string{what: id, "by": by})
	return nil
}
