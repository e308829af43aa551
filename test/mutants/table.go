package main

import "slices"

// all returns the table.
func all() []mutant {
	return slices.Concat(leases, fences, ledger, releases, workloads, ofMounts, plugins, upgrades, crashes, inConsul,
		otherNodes, joining, stalls, inChaos())
}
