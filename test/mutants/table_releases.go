package main

const watcherPkg = "./host/internal/peer/watcher"

// releases are planted bugs of the release of claims by the leader.
var releases = []mutant{
	{
		name: "freed-before-detached", promise: "a claim is freed after the volume is detached, never before",
		in: "host/internal/peer/watcher", decl: "releases",
		old: "{claim.NodeDetached, (*Watcher).controllerDetach, claim.Freed},",
		new: "{claim.NodeDetached, (*Watcher).nodeDetach, claim.Freed},",
		pkg: watcherPkg, run: "^TestAClaimIsReleasedInOrder$",
	},
	{
		name: "own-workload-not-asked", promise: "a node that still has the workload unmounts it itself, before its claim is freed",
		in: "host/internal/peer/watcher", decl: "Watcher.nodeDetach",
		old: "	case err != nil || owns:\n",
		new: "	case err != nil || owns && c.Node == \"\":\n",
		pkg: watcherPkg, run: "^TestTheNodesOwnWorkloadIsLeftToIt$",
	},
	{
		name: "released-before-the-end", promise: "a claim is released when the ledger knows that its workload has ended, never before",
		in: "host/internal/workload", decl: "run.release",
		old: "	if err := r.endReported(); err != nil {\n",
		new: "	if err := error(nil); err != nil {\n",
		pkg: workloadPkg, run: "^TestTheLedgerIsAwayAtAStop$",
	},
	{
		name: "detached-under-another", promise: "a volume is not detached from a node on which another workload has it",
		in: "host/internal/peer/watcher", decl: "Watcher.othersThere",
		old: "			return o.Node == c.Node && o.Workload != c.Workload\n",
		new: "			return o.Node == c.Node && o.Workload == claim.WorkloadRef{}\n",
		pkg: watcherPkg, run: "^TestOnlyTheLastClaimOnANodeDetaches$",
	},
	{
		name: "release-unseen", promise: "the leader sees each claim whose release begins or goes on",
		in: "cluster/state", decl: "writeTx.writeClaim",
		old: "		tx.touch(TopicReleasing)\n",
		new: "		tx.touch()\n",
		pkg: "./cluster/state", run: "^TestWatch$",
	},
	{
		name: "detached-in-vain", promise: "a claim is freed after the volume is detached, never before",
		in: "host/internal/peer/watcher", decl: "Watcher.controllerDetach",
		old: "	_, err = w.Controllers.Detach(ctx, v, ",
		new: "	_, _ = w.Controllers.Detach(ctx, v, ",
		pkg: watcherPkg, run: "^TestReleaseIsRetriedWhenADriverChanges$",
	},
	{
		name: "too-many-detaches", promise: "a driver is called for 16 volumes at once, not for more",
		in: "host/internal/peer/watcher", decl: "New",
		old: "w.detaches.Slots = callsPerDependency, callsPerDependency\n",
		new: "w.detaches.Slots = callsPerDependency, parallelPerDependency\n",
		pkg: watcherPkg, run: "^TestHangingDependencyHoldsUpNoOther$",
	},
	{
		name: "attached-while-detached", promise: "a volume is not attached while a call that was given up may still detach it",
		in: "host/internal/csi/controllers", decl: "Controllers.Detach",
		old: "	defer l.release()\n	needed, err := stillNeeded(ctx)\n",
		new: "	defer l.unlock()\n	needed, err := stillNeeded(ctx)\n",
		pkg: "./host/internal/csi/controllers", run: "^TestTheOppositeOfACallThatWasGivenUpWaits$/^detach$",
	},
	{
		name: "forced-though-up", promise: "volume detach -force does not free the claim of a node that answers",
		in: "host/internal/peer/watcher", decl: "Watcher.force",
		old: "		if w.answers(ctx, c) {\n",
		new: "		if w.answers(ctx, c) && c.Node == \"\" {\n",
		pkg: watcherPkg, run: "^TestDetach",
	},
	{
		name: "live-mount-detached-by-force", promise: "a forced release waits for what has the volume in use",
		in: "host/internal/csi/mounts", decl: "unmountBelow",
		old: "	return unix.Unmount(c.path(), unix.UMOUNT_NOFOLLOW)\n",
		new: "	return unix.Unmount(c.path(), unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)\n",
		pkg: workloadPkg, run: "^TestForcedReleaseOfABusyVolume$",
	},
	{
		name: "forced-without-an-operator", promise: "a volume is unmounted without its driver only for an operator",
		in: "host/internal/workload/volumesteps", decl: "Steps.byForce",
		old: "	if by == \"\" {\n		return v.suggestForce(path, err)\n	}\n",
		new: "	if by == \"\" {\n		by = \"nobody\"\n	}\n",
		pkg: workloadPkg, run: "^TestReleaseIsNotForced$",
	},
	{
		name: "refused-is-undone", promise: "what Consul has refused for certain is not undone there",
		in: "host/internal/workload/servicesteps", decl: "Steps.revoke",
		old: "	if slices.Contains(svc.Unmade, t.ID) {\n",
		new: "	if slices.Contains(svc.Unmade, t.ID) && svc.asked[t.ID] {\n",
		pkg: "./host/internal/workload", run: "^TestWhatConsulRefusedIsNotUndone$",
	},
	{
		name: "refused-after-no-answer", promise: "a token that Consul may have made is revoked, also if it was refused later",
		in: "host/internal/workload/servicesteps", decl: "Steps.derive",
		old: "		svc.asked[t.ID] = before || !step.Definite(err)\n",
		new: "		svc.asked[t.ID] = !step.Definite(err) && !before\n",
		pkg: "./host/internal/workload", run: "^TestWhatConsulRefusedIsNotUndone$",
	},
	{
		name: "refused-replacement-kept", promise: "a replacement that Consul has refused leaves no record of a token",
		in: "host/internal/workload/servicesteps", decl: "Service.NoteUnmade",
		old: "		if !s.asked[t.ID] {\n",
		new: "		if !s.asked[t.ID] && s.Next.ID == \"\" {\n",
		pkg: "./host/internal/workload", run: "^TestARefusedReplacementIsForgotten$",
	},
	{
		name: "force-leaves-nothing", promise: "a forced release does not wait for what Consul refuses",
		in: "host/internal/workload/servicesteps", decl: "Steps.leave",
		old: "	case by == \"\" && step.Definite(err):\n",
		new: "	case step.Definite(err):\n",
		pkg: "./host/internal/workload", run: "^TestForcedReleaseLeavesWhatConsulKeeps$",
	},
	{
		name: "force-forgotten", promise: "a forced release is forced after a restart of the agent too",
		in: "host/internal/workload", decl: "record",
		old: "`json:\"forced_by,omitempty\"` // see step.Workload",
		new: "`json:\"-\"` // see step.Workload",
		pkg: workloadPkg, run: "^TestForcedReleaseOfABusyVolume$",
	},
}
