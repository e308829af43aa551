package claim

import "slices"

// States lists the states in the order in which a claim passes them.
var States = []State{Taken, Unpublishing, NodeDetached, ControllerDetached, ReadyToFree, Freed}

// Valid says whether s is a state.
func (s State) Valid() bool { return slices.Contains(States, s) }

// Releasing says that the claim is on its way out: someone must finish it.
func (s State) Releasing() bool {
	return s.Valid() && s != Taken && s != Freed
}

// Before says whether s comes before o.
func (s State) Before(o State) bool {
	return slices.Index(States, s) < slices.Index(States, o)
}

// CanAdvance says whether a claim may go from one state to another: forward
// only. States may be skipped, since not every driver needs every call: the
// releaser skips those that it has nothing to do in. Staying is allowed, so that
// a checkpoint can be repeated.
func CanAdvance(from, to State) bool {
	return from.Valid() && to.Valid() && !to.Before(from)
}
