// Package step is what the engine of a workload and its steps have in common: what a step knows
// of its workload, how its progress is recorded, and how a failed call is retried.
package step

import (
	"errors"

	"github.com/pannier/pannier/cluster/claim"
)

// Progress is how far a step has come. A step without progress has nothing to undo.
type Progress string

const (
	Intended Progress = "intended" // Do may have been called
	Done     Progress = "done"     // Do has succeeded
)

// Workload is a workload on this node, as its steps see it.
type Workload interface {
	Ref() claim.WorkloadRef
	// Resumed reports that an earlier process of the host began the workload.
	Resumed() bool
	// View calls read under the lock that guards the workload's records.
	View(read func())
	// Update changes a record under that lock and notifies those who follow the workload.
	Update(change func())
	// Save is an Update that has written the records to the journal when it returns.
	Save(change func()) error
}

// NoEffect marks the error of a Do that failed before it had any effect: there is nothing to undo.
func NoEffect(err error) error { return noEffectError{err} }

// HadNoEffect reports whether an error was marked by NoEffect.
func HadNoEffect(err error) bool { return errors.As(err, new(noEffectError)) }

type noEffectError struct{ error }

func (e noEffectError) Unwrap() error { return e.error }

// Refused reports that the ledger decided against a command, so it had no effect. Any other
// error leaves that open.
func Refused(err error) bool {
	return errors.As(err, new(*claim.Refusal)) || errors.Is(err, claim.ErrInvalid) ||
		errors.Is(err, claim.ErrVolumeNotFound) || errors.Is(err, claim.ErrConflict) ||
		errors.Is(err, claim.ErrIneligible) || errors.Is(err, claim.ErrCycle)
}
