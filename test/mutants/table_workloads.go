package main

const workloadPkg = "./host/internal/workload"

// workloads are planted bugs of a workload's steps on its node.
var workloads = []mutant{
	{
		name: "intent-not-written", promise: "what a failed start needs to be undone is in the journal before it is done",
		file: "host/internal/workload/run.go",
		old:  "	if before == \"\" {\n		if err := r.mark(a, of, step.Intended); err != nil {\n",
		new:  "	if before == \"\" && a.of != eachVolume {\n		if err := r.mark(a, of, step.Intended); err != nil {\n",
		pkg:  workloadPkg, run: "^TestAStepGoesWrong$",
	},
	{
		name: "undo-left-out", promise: "a failed start is undone completely",
		file: "host/internal/workload/run.go",
		old:  "	err := a.undo(r, ctx, of)\n",
		new:  "	err := error(nil)\n	if a.name != \"stage\" {\n		err = a.undo(r, ctx, of)\n	}\n",
		pkg:  workloadPkg, run: "^TestOneVolumeStartAndStop$",
	},
	{
		name: "boot-ignored", promise: "after a reboot nothing is assumed to be mounted",
		file: "host/internal/workload/restore.go",
		old:  "	if rec.BootID != m.bootID {\n",
		new:  "	if rec.BootID == \"\" {\n",
		pkg:  workloadPkg, run: "^TestAReboot$",
	},
	{
		name: "reconcile-skipped", promise: "a node that was away compares its workloads with the ledger",
		file: "host/internal/workload/reconcile.go",
		old:  "	m.dropLost(had, claims)\n	return m.endUnknown(ctx, standing)\n",
		new:  "	_, _ = had, claims\n	return m.endUnknown(ctx, standing)\n",
		pkg:  workloadPkg, run: "^TestANodeComesBack$",
	},
	{
		name: "lease-unchecked-after-publish", promise: "a mount that was made while the lease ended is removed",
		file: "host/internal/workload/volumesteps/publish.go",
		old:  "	if err := s.Lease.Valid(); err != nil {\n		return err\n	}\n	mounted, err := checkPublished(v)\n",
		new:  "	mounted, err := checkPublished(v)\n",
		pkg:  workloadPkg, run: "^TestNothingIsMountedWithoutALease$",
	},
	{
		name: "published-before-attached", promise: "a volume is never published before it is attached",
		file: "host/internal/workload/steps.go",
		old: `	ofVolume("attach", (*volumesteps.Volume).Attaches, (*volumesteps.Steps).Attach, (*volumesteps.Steps).LeaveAttachment),
	ofVolume("stage", (*volumesteps.Volume).Stages, (*volumesteps.Steps).Stage, (*volumesteps.Steps).Unstage),
	ofVolume("publish", nil, (*volumesteps.Steps).Publish, (*volumesteps.Steps).Unpublish),
`,
		new: `	ofVolume("stage", (*volumesteps.Volume).Stages, (*volumesteps.Steps).Stage, (*volumesteps.Steps).Unstage),
	ofVolume("publish", nil, (*volumesteps.Steps).Publish, (*volumesteps.Steps).Unpublish),
	ofVolume("attach", (*volumesteps.Volume).Attaches, (*volumesteps.Steps).Attach, (*volumesteps.Steps).LeaveAttachment),
`,
		pkg: workloadPkg, run: "^TestOneVolumeStartAndStop$",
	},
	{
		name: "claim-freed-while-mounted", promise: "a claim is freed after its volume is unmounted, never before",
		file: "host/internal/workload/volumesteps/claim.go",
		old:  "			if len(v.Steps) > 0 && !slices.Contains(left, v.Ref) {\n",
		new:  "			if len(v.Steps) > 8 && !slices.Contains(left, v.Ref) {\n",
		pkg:  workloadPkg, run: "^(TestUndoIsRepeatedUntilItWorks|TestADriverIsAwayAtAStop)$",
	},
	{
		name: "fence-not-told", promise: "the fence knows of a mount before a driver is asked to make it",
		file: "host/internal/workload/volumesteps/guard.go",
		old:  "	if err == nil {\n		err = s.Lease.Protect(ctx, m)\n	}\n",
		new:  "	if err == nil {\n		err = s.Lease.Valid()\n	}\n",
		pkg:  workloadPkg, run: "^TestNothingBeginsWithoutTheFence$",
	},
	{
		name: "claims-not-compared", promise: "a start that continues under another lease compares its claims with the ledger",
		file: "host/internal/workload/volumesteps/guard.go",
		old:  "	if confirmed {\n		return nil\n	}\n",
		new:  "	if confirmed || epoch != 0 {\n		return nil\n	}\n",
		pkg:  workloadPkg, run: "^TestLeaseIsLostDuringAStart$",
	},
	{
		name: "copies-on-the-host-ignored", promise: "a claim is not freed while the volume is bound elsewhere on the host",
		file: "host/internal/system/mountuse/holder.go",
		old:  "	s.lookHere(table)\n",
		new:  "",
		pkg:  workloadPkg, run: "^TestStopWaitsForCopiesOnTheHost$",
	},
	{
		name: "copies-elsewhere-ignored", promise: "a claim is not freed while a container still has the volume mounted",
		file: "host/internal/workload/volumesteps/publish.go",
		old:  "		if h, err := s.holder(v); err != nil || h != nil {\n",
		new:  "		if h, err := s.holder(v); err != nil {\n",
		pkg:  workloadPkg, run: "^TestStopWaitsForCopiesInOtherNamespaces$",
	},
	{
		name: "hidden-files-ignored", promise: "a start that would hide files is refused",
		file: "host/internal/csi/mounts/aside.go",
		old:  "	case what != \"\":\n",
		new:  "	case what == \"?\":\n",
		pkg:  workloadPkg, run: "^TestFilesInTheWayOfAStart$",
	},
	{
		name: "unknown-workload-kept", promise: "a lost journal loses no claim: what the ledger has for the node is released",
		file: "host/internal/workload/reconcile.go",
		old:  "		if m.Owns(w.Ref) {\n			continue\n",
		new:  "		if m.Owns(w.Ref) || w.Node == m.Node {\n			continue\n",
		pkg:  "./test/suite/e2e", run: "^TestJournalIsLost$",
	},
}
