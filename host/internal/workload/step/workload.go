package step

import "github.com/pannier/pannier/cluster/claim"

// Workload is a workload on this node, as its steps see it.
type Workload interface {
	Ref() claim.WorkloadRef
	// Resumed reports that an earlier process of the host began the workload.
	Resumed() bool
	// ForcedBy is the operator who lets the release unmount what drivers do not; empty: nobody.
	ForcedBy() string
	// LoadedByUnits reports that systemd gives copies of its services' files to units. The caller is in a View.
	LoadedByUnits() bool
	// View calls read under the lock that guards the workload's records.
	View(read func())
	// Update changes a record under that lock and notifies those who follow the workload.
	Update(change func())
	// Save is an Update that has written the records to the journal when it returns.
	Save(change func()) error
}
