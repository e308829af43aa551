package workload

import (
	"context"
	"fmt"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/workload/volumesteps"
)

// Check is what a start would find on this node.
type Check struct {
	// State of the workload; empty: it is not there.
	State State
	// Volumes are the requests without a problem.
	Volumes []volumesteps.Checked
	// Problems would make a start fail now, whoever has the volumes.
	Problems []error
}

// Check returns what Start would do with a specification, as far as it is known without claiming anything. It changes
// nothing. The error is specs.ErrInvalid for a specification that can never be started.
func (m *Manager) Check(ctx context.Context, spec Spec) (c Check, err error) {
	if err := spec.Validate(); err != nil {
		return c, err
	}
	if c.State, err = m.checkNew(spec); err != nil { //nolint:contextcheck // looking at ports waits for nothing
		c.Problems = append(c.Problems, err)
	}
	if len(spec.Devices) > 0 && c.State == "" {
		if err := m.Devices.Check(spec.Namespace, deviceRequests(spec)); err != nil {
			c.Problems = append(c.Problems, err)
		}
	}
	var problems []error
	c.Volumes, problems = m.volumes.Claims.Check(ctx, spec.WorkloadRef, spec.Volumes)
	c.Problems = append(c.Problems, problems...)
	return c, nil
}

// checkNew checks all that begin does but for the volumes. It takes the ports and leaves them again under the lock
// under which starts take theirs.
func (m *Manager) checkNew(spec Spec) (State, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i, err := m.known.find(spec.WorkloadRef); err == nil {
		s := i.snapshot()
		switch {
		case s.State == Stopping:
			return s.State, nil // a start waits for it
		case !s.State.Ended():
			if differs := differences(s.Spec, spec); differs != "" {
				return s.State, fmt.Errorf("workload %q: %w: other %s; stop it first: pannier workload stop %s", spec.WorkloadRef,
					ErrConflict, differs, spec.ID)
			}
			return s.State, nil
		}
	}
	switch {
	case !isClosed(m.reconciled):
		return "", fmt.Errorf("workload %q: %w", spec.WorkloadRef, ErrNotReconciled)
	case m.draining != "":
		return "", fmt.Errorf("node %q: %w: %s", m.Node, claim.ErrIneligible, m.draining)
	}
	rec := record{Spec: spec}
	_, err := m.resolve(&rec)
	m.Ports.Release(spec.WorkloadRef)
	return "", err
}
