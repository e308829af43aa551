package main

const (
	fencePkg    = "./host/internal/fencing/fence"
	mountusePkg = "./host/internal/system/mountuse"
)

// fences are planted bugs of the fence.
var fences = []mutant{
	{
		name: "fence-without-kill", promise: "the fence kills whatever uses a volume at the deadline",
		in: "host/internal/fencing/fence", decl: "actor.killAll",
		old: "		a.kill(sc, h)\n",
		new: "		_ = h\n",
		pkg: fencePkg, run: "^TestNamedProcessesAreKilled$",
	},
	{
		name: "fence-spares-containers", promise: "the fence kills the containers that have a volume",
		in: "host/internal/system/mountuse", decl: "Scene.Residents",
		old: "		if locked[c.Tree.Namespace] || s.given(c) {\n",
		new: "		if locked[c.Tree.Namespace] {\n",
		pkg: fencePkg, run: "^TestContainersAreKilled$",
	},
	{
		name: "fence-spares-given-devices", promise: "the fence kills the containers that may open a volume's block device",
		in: "host/internal/system/mountuse", decl: "nodeIn",
		old: "			if of = blocks[blockAt(name)]; of != \"\" {\n",
		new: "			if of = blocks[blockAt(name)]; of != \"\" && filepath.Dir(there) == \"/dev\" {\n",
		pkg: fencePkg, run: "^TestContainerWithADeviceNodeIsKilled$",
	},
	{
		name: "fence-forgets-what-was-mounted", promise: "the fence knows a volume whose path somebody has unmounted",
		in: "host/internal/fencing/fence", decl: "Change.Protect",
		old: "			m.Was = c.to.mounts[m.Path].Was\n",
		new: "			m.Was = c.to.mounts[\"\"].Was\n",
		pkg: fencePkg, run: "^TestVolumeThatSomebodyUnmounted$",
	},
	{
		name: "fence-without-unmount", promise: "the fence unmounts the volumes at the deadline",
		in: "host/internal/fencing/fence", decl: "actor.round",
		old: "	a.unmountAll(sc, append(holders, users...))\n",
		new: "",
		pkg: fencePkg, run: "^TestHoldersAreKilledAtTheDeadline$",
	},
	{
		name: "fence-kills-late", promise: "the fence acts at the deadline, not later",
		in: "host/internal/fencing/fence", decl: "server.due",
		old: "	return d != 0 && boottime.Now() >= d\n",
		new: "	return d != 0 && boottime.Now() >= d.Add(10*time.Second)\n",
		pkg: fencePkg, run: "^TestHoldersAreKilledAtTheDeadline$",
	},
	{
		name: "fence-ignores-other-namespaces", promise: "the fence unmounts copies in other mount namespaces",
		in: "host/internal/fencing/fence", decl: "actor.unmountAll",
		old: "		if of.Layer || held(guard) ||\n",
		new: "		if of.Layer || guard.Path != \"\" ||\n",
		pkg: fencePkg, run: "^TestCopyIsUnmountedInItsNamespace$",
	},
	{
		name: "fence-ignores-a-late-mount", promise: "what a driver mounts after the deadline is unmounted at once",
		in: "host/internal/fencing/fence", decl: "actor.round",
		old: "	for _, m := range s.Mounts {\n		a.guards[m.Path] = m\n	}\n",
		new: "	for _, m := range s.Mounts {\n		a.guards[m.Path] = m\n	}\n	if a.report != nil && a.report.Done != 0 {\n		return false\n	}\n",
		pkg: fencePkg, run: "^TestMountAfterTheDeadline$",
	},
	{
		name: "fence-forgets-over-a-restart", promise: "when agent and fence are killed, the next fence acts on what was saved",
		in: "host/internal/fencing/fence", decl: "saveState",
		old: "	return os.Rename(next, filepath.Join(dir, stateFile()))\n",
		new: "	return os.Remove(next)\n",
		pkg: fencePkg, run: "^TestAgentAndFenceAreKilled$",
	},
	{
		name: "fence-trusts-another-boot", promise: "the fence does not act on the state of another boot",
		in: "host/internal/fencing/fence", decl: "loadState",
		old: "			_ = os.Remove(old) // it is in nobody's way\n",
		new: "			path = old\n",
		pkg: fencePkg, run: "^TestStateOfAnotherBoot$",
	},
	{
		name: "published-without-fence", promise: "nothing is published until the fence has confirmed it",
		in: "host/internal/fencing/fence", decl: "Client.Update",
		old: "	mine := c.version\n",
		new: "	mine := c.told\n",
		pkg: fencePkg, run: "^TestUpdateWaitsForTheFence$",
	},
	{
		name: "fence-waits-for-its-disk", promise: "the fence acts while the disk of the data directory hangs",
		in: "host/internal/fencing/fence", decl: "server.take",
		old: "		saved = s.saver.save(s.state)\n",
		new: "		done := make(chan error, 1)\n		done <- <-s.saver.save(s.state)\n		saved = done\n",
		pkg: fencePkg, run: "^TestDiskThatHangs$",
	},
	{
		name: "fence-ignores-layers", promise: "the fence takes away what lies on a volume, such as an overlay",
		in: "host/internal/system/mountuse", decl: "Scene.findLayers",
		old: "	if len(s.Places) == 0 && len(s.Copies) == 0 {\n",
		new: "	if len(s.Places) >= 0 {\n",
		pkg: fencePkg, run: "^TestLayersAreTakenAway$",
	},
	{
		name: "fence-does-not-prove", promise: "the fence is not done while a volume's block device is in use",
		in: "host/internal/fencing/fence", decl: "actor.round",
		old: "		a.proveUnused(sc.Swaps)\n",
		new: "		a.done()\n",
		pkg: fencePkg, run: "^TestFileSystemThatIsStillInUse$",
	},
	{
		name: "report-of-another-run", promise: "what the fence did to an earlier run is not taken for this one's",
		in: "host/internal/fencing/fence", decl: "Report.Hit",
		old: "r.BootID == bootID && r.Deadline > started\n",
		new: "r.BootID == bootID && r.Deadline != started\n",
		pkg: fencePkg, run: "^TestReportIsOfTheRun$",
	},
	{
		name: "fence-ignores-a-renewal", promise: "a renewed lease postpones the fence's deadline",
		in: "host/internal/fencing/fence", decl: "server.take",
		old: "		s.state, s.told = *q.Set, true\n",
		new: "		before := s.state.Times\n		if s.state, s.told = *q.Set, true; before.Deadline != 0 {\n			s.state.Times = before\n		}\n",
		pkg: fencePkg, run: "^TestPostponedDeadline$",
	},
	{
		name: "killed-fence-not-replaced", promise: "when the fence is killed, the agent starts another at once",
		in: "host/internal/fencing/fence", decl: "Client.keep",
		old: "			gone = c.conn.gone\n",
		new: "			gone = nil\n",
		pkg: fencePkg, run: "^TestKilledFenceIsReplacedAtOnce$",
	},
	{
		name: "later-process-forgotten", promise: "the fence kills a process whose PID an earlier one of a workload had",
		in: "host/internal/fencing/fence", decl: "Change.ReleaseProcess",
		old: "	if c.to.processes[p.PID].StartTime == p.StartTime {\n		delete(c.to.processes, p.PID)\n	}\n",
		new: "	delete(c.to.processes, p.PID)\n",
		pkg: fencePkg, run: "^TestReleasedProcess$",
	},
	{
		name: "ended-process-kept", promise: "the fence does not guard a process that has ended",
		in: "host/internal/fencing/fence", decl: "Change.ReleaseProcess",
		old: "		delete(c.to.processes, p.PID)\n",
		new: "		c.to.processes[p.PID] = p\n",
		pkg: fencePkg, run: "^TestReleasedProcess$",
	},
	{
		name: "mounts-below-released", promise: "the release of a mount leaves those below it guarded",
		in: "host/internal/fencing/fence", decl: "Change.Release",
		old: "		delete(c.to.mounts, m.Path)\n",
		new: "		maps.DeleteFunc(c.to.mounts, func(p string, _ Mount) bool { return p[:min(len(p), len(m.Path))] == m.Path })\n",
		pkg: fencePkg, run: "^TestReleasedMount$",
	},
}
