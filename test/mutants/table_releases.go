package main

const watcherPkg = "./host/internal/leader/watcher"

// releases are planted bugs of the release of claims by the leader.
var releases = []mutant{
	{
		name: "freed-before-detached", promise: "a claim is freed after the volume is detached, never before",
		file: "host/internal/leader/watcher/release.go",
		old:  "	if c.State == claim.NodeDetached {\n",
		new:  "	if c.State == claim.Unpublishing {\n",
		pkg:  watcherPkg, run: "^TestAClaimIsReleasedInOrder$",
	},
	{
		name: "own-workload-not-asked", promise: "a node that still has the workload unmounts it itself, before its claim is freed",
		file: "host/internal/leader/watcher/release.go",
		old:  "	case err != nil || owns:\n",
		new:  "	case err != nil || owns && c.Node == \"\":\n",
		pkg:  watcherPkg, run: "^TestTheNodesOwnWorkloadIsLeftToIt$",
	},
	{
		name: "freed-though-attached", promise: "a claim is freed together with its node's report only if its driver detaches nothing",
		file: "host/internal/leader/watcher/release.go",
		old:  "NeedsDetach(v.PluginID); err != nil || needed {\n",
		new:  "NeedsDetach(v.PluginID); err != nil && needed {\n",
		pkg:  watcherPkg, run: "^TestFreedWithTheReport$",
	},
	{
		name: "released-before-the-end", promise: "a claim is released when the ledger knows that its workload has ended, never before",
		file: "host/internal/workload/steps.go",
		old:  "	if err := r.endReported(); err != nil {\n",
		new:  "	if err := error(nil); err != nil {\n",
		pkg:  workloadPkg, run: "^TestTheLedgerIsAwayAtAStop$",
	},
	{
		name: "detached-under-another", promise: "a volume is not detached from a node on which another workload has it",
		file: "host/internal/leader/watcher/release.go",
		old:  "			if o.Node == c.Node && o.Workload != c.Workload {\n",
		new:  "			if o.Node == c.Node && o.Workload == c.Workload && err != nil {\n",
		pkg:  watcherPkg, run: "^TestOnlyTheLastClaimOnANodeDetaches$",
	},
	{
		name: "forced-though-up", promise: "volume detach -force does not free the claim of a node that answers",
		file: "host/internal/leader/watcher/detach.go",
		old:  "		if w.answers(ctx, c) {\n",
		new:  "		if w.answers(ctx, c) && c.Node == \"\" {\n",
		pkg:  watcherPkg, run: "^TestDetach",
	},
	{
		name: "live-mount-detached-by-force", promise: "a forced release waits for what has the volume in use",
		file: "host/internal/csi/mounts/dir.go",
		old:  "	return unix.Unmount(c.path(), unix.UMOUNT_NOFOLLOW)\n",
		new:  "	return unix.Unmount(c.path(), unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)\n",
		pkg:  workloadPkg, run: "^TestForcedReleaseOfABusyVolume$",
	},
	{
		name: "forced-without-an-operator", promise: "a volume is unmounted without its driver only for an operator",
		file: "host/internal/workload/volumesteps/force.go",
		old:  "	if by == \"\" {\n		return v.suggestForce(path, err)\n	}\n",
		new:  "	if by == \"\" {\n		by = \"nobody\"\n	}\n",
		pkg:  workloadPkg, run: "^TestReleaseIsNotForced$",
	},
	{
		name: "refused-is-undone", promise: "what Consul has refused for certain is not undone there",
		file: "host/internal/workload/servicesteps/identify.go",
		old:  "	if slices.Contains(svc.Unmade, t.ID) {\n",
		new:  "	if slices.Contains(svc.Unmade, t.ID) && svc.asked[t.ID] {\n",
		pkg:  "./host/internal/workload", run: "^TestWhatConsulRefusedIsNotUndone$",
	},
	{
		name: "refused-after-no-answer", promise: "a token that Consul may have made is revoked, also if it was refused later",
		file: "host/internal/workload/servicesteps/identify.go",
		old:  "		svc.asked[t.ID] = before || !step.Definite(err)\n",
		new:  "		svc.asked[t.ID] = !step.Definite(err) && !before\n",
		pkg:  "./host/internal/workload", run: "^TestWhatConsulRefusedIsNotUndone$",
	},
	{
		name: "refused-replacement-kept", promise: "a replacement that Consul has refused leaves no record of a token",
		file: "host/internal/workload/servicesteps/identify.go",
		old:  "		if !s.asked[t.ID] {\n",
		new:  "		if !s.asked[t.ID] && s.Next.ID == \"\" {\n",
		pkg:  "./host/internal/workload", run: "^TestARefusedReplacementIsForgotten$",
	},
	{
		name: "force-leaves-nothing", promise: "a forced release does not wait for what Consul refuses",
		file: "host/internal/workload/servicesteps/force.go",
		old:  "	case by == \"\" && step.Definite(err):\n",
		new:  "	case step.Definite(err):\n",
		pkg:  "./host/internal/workload", run: "^TestForcedReleaseLeavesWhatConsulKeeps$",
	},
	{
		name: "force-forgotten", promise: "a forced release is forced after a restart of the agent too",
		file: "host/internal/workload/record.go",
		old:  "`json:\"forced_by,omitempty\"` // see step.Workload",
		new:  "`json:\"-\"` // see step.Workload",
		pkg:  workloadPkg, run: "^TestForcedReleaseOfABusyVolume$",
	},
}
