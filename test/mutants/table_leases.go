package main

// The packages whose tests guard leases.
const (
	leasePkg     = "./host/internal/fencing/lease"
	heartbeatPkg = "./host/internal/fencing/heartbeat"
)

// leases are planted bugs of the node's lease and of the leader's side of it.
var leases = []mutant{
	{
		name: "lease-too-long", promise: "a node's lease ends stop_after after it sent its last answered heartbeat",
		in: "host/internal/fencing/lease", decl: "NodeTimes",
		old: "stop := sent.Add(l.StopAfter)\n",
		new: "stop := sent.Add(l.StopAfter + time.Second)\n",
		pkg: leasePkg, run: "^TestTheFenceActsBeforeTheLeaderReleases$", args: []string{"-rapid.nofailfile"},
	},
	{
		name: "lease-from-the-answer", promise: "a lease counts from when the heartbeat was sent, not from its answer",
		in: "host/internal/fencing/lease", decl: "Lease.Renew",
		old: "times := NodeTimes(sent, timeouts)\n",
		new: "times := NodeTimes(boottime.Now(), timeouts)\n",
		pkg: leasePkg, run: "^TestLateAnswer$",
	},
	{
		name: "older-heartbeat-counts", promise: "the answer to an older heartbeat changes nothing",
		in: "host/internal/fencing/lease", decl: "Lease.Renew",
		old: "if sent <= l.sent {\n",
		new: "if sent == l.sent {\n",
		pkg: leasePkg, run: "^TestOnlyANewerHeartbeatCounts$",
	},
	{
		name: "renewed-without-fence", promise: "a lease is renewed only if the fence has confirmed it",
		in: "host/internal/fencing/lease", decl: "Lease.Renew",
		old: `!errors.Is(err, fence.ErrNotKept) {
		return fmt.Errorf("renew the lease: tell the fence: %w", err)`,
		new: `!errors.Is(err, fence.ErrNotKept) {
		l.log.Warn("renew the lease: tell the fence", "error", err)`,
		pkg: leasePkg, run: "^TestUnreachableFencePreventsRenewal$",
	},
	{
		name: "unsafe-timeouts-accepted", promise: "timeouts with which two nodes could have a volume are refused",
		in: "cluster/claim", decl: "CheckLiveness",
		old: "case StopTime(l) < MinStopTime:\n",
		new: "case StopTime(l) < -MinStopTime:\n",
		pkg: leasePkg, run: "^TestUnsafeTimeouts$",
	},
	{
		name: "released-early", promise: "a node's claims are released no sooner than stop_after and stop_margin later",
		in: "cluster/claim", decl: "ReleaseAfter",
		old: "return l.StopAfter + l.Margin }",
		new: "return l.StopAfter + l.Margin/FenceShare }",
		pkg: leasePkg, run: "^TestTheFenceActsBeforeTheLeaderReleases$", args: []string{"-rapid.nofailfile"},
	},
	{
		name: "changed-node-missed", promise: "a node that registers while it goes down is counted from then on",
		in: "host/internal/fencing/heartbeat", decl: "Tracker.list",
		old: "		case n.changing != \"\":\n			term.undone = true\n		case down",
		new: "		case n.changing != \"\":\n		case down",
		pkg: heartbeatPkg, run: "^TestNodesAreFollowed$",
	},
	{
		name: "promise-forgotten", promise: "a new leader keeps what earlier leaders promised",
		in: "host/internal/fencing/heartbeat", decl: "leaderTerm.add",
		old: "keepUntil: time.Now().Add(claim.ReleaseAfter(term.inherited)), at: -1,",
		new: "keepUntil: time.Now().Add(claim.ReleaseAfter(term.promise)), at: -1,",
		pkg: heartbeatPkg, run: "^TestNewLeaderKeepsEarlierPromises$",
	},
	{
		name: "answered-while-releasing", promise: "no heartbeat is answered while the node's claims are released",
		in: "host/internal/fencing/heartbeat", decl: "Tracker.promise",
		old: "case n.changing == claim.NodeDown:\n",
		new: "case n.changing == claim.NodeDown && n.at > 0:\n",
		pkg: heartbeatPkg, run: "^TestNoAnswerWhileClaimsAreReleased$",
	},
	{
		name: "unknown-node-has-a-lease", promise: "a node that the ledger does not know gets no lease",
		in: "host/internal/fencing/heartbeat", decl: "Tracker.Answer",
		old: "				a.Status = claim.NodeDown\n				return nil\n",
		new: "				a.Status, unknown = claim.NodeReady, false\n				return nil\n",
		pkg: heartbeatPkg, run: "^(TestNoPromiseToAnotherMachine|TestOnlyALeaderAnswers)$",
	},
	{
		name: "earlier-boot-unchecked", promise: "a heartbeat of another boot does not renew the lease of the earlier one",
		in: "host/internal/fencing/heartbeat", decl: "Tracker.Answer",
		old: "			case err == nil && n.AnotherBoot(bootID):\n				return n.EarlierBoot()\n",
		new: "",
		pkg: heartbeatPkg, run: "^TestNoPromiseToAnotherMachine$",
	},
	{
		name: "machine-by-kernel", promise: "two containers of one kernel are two machines",
		in: "host/internal/system/process", decl: "MachineID",
		old: "bootID(), ns.Ino, first.StartTime), nil",
		new: "bootID(), 0*ns.Ino, 0*first.StartTime), nil",
		pkg: "./host/internal/system/process", run: "^TestMachineID$",
	},
	{
		name: "single-host-joins", promise: "a single host's ledger is no second cluster beside the one that it joins",
		in: "host/internal/agent", decl: "member.checkLedger",
		old: "		if (err == nil) != want {\n",
		new: "		if (err == nil) != want || path == ledger {\n",
		pkg: "./host/internal/agent", run: "^TestLedgerOfASingleHost$",
	},
	{
		name: "two-clusters-pass", promise: "a pool that holds two clusters fails the checks",
		in: "host/internal/config/doctor", decl: "OneCluster",
		old: "	if len(clusters) < 2 {\n",
		new: "	if len(clusters) < 3 {\n",
		pkg: "./host/internal/config/doctor", run: "^TestOneCluster$",
	},
	{
		name: "lease-before-reconciling", promise: "a node from which claims were taken compares before it gets a lease again",
		in: "host/internal/fencing/lease", decl: "Keeper.send",
		old: "	if k.Back != nil && a.LostIndex > k.comparedTo.Load() {\n",
		new: "	if k.Back != nil && a.LostIndex > a.Index {\n",
		pkg: leasePkg, run: "^TestNoLeaseBeforeLostClaimsAreCompared$",
	},
	{
		name: "registers-before-it-stops", promise: "a node that is told that it is down stops before it registers again",
		in: "host/internal/fencing/lease", decl: "Keeper.follow",
		old: "		select {\n		case <-lost:\n			told = lost\n",
		new: "		select {\n		case <-map[bool]<-chan struct{}{false: lost}[answered]:\n			told = lost\n",
		pkg: leasePkg, run: "^TestStopsBeforeItRegisters$",
	},
	{
		name: "slew-forgotten", promise: "clocks may be slewed as fast as the kernel permits",
		in: "cluster/claim", decl: "MaxDrift",
		old: "	MaxDrift = 0.101\n",
		new: "	MaxDrift = 0.01\n",
		pkg: leasePkg, run: "^TestSlewedClocks$",
	},
	{
		name: "expired-without-fence", promise: "when the servers declare a node down, its fence acts at once",
		in: "host/internal/fencing/lease", decl: "Lease.Expire",
		old: "		l.times = fence.Times{Stop: now, Deadline: now}\n",
		new: "		l.times = fence.Times{Stop: now, Deadline: l.times.Deadline}\n",
		pkg: leasePkg, run: "^TestExpire$",
	},
	{
		name: "same-epoch", promise: "each lease has an epoch of its own, by which claims are compared again",
		in: "host/internal/fencing/lease", decl: "Lease.begin",
		old: "	l.epoch++\n",
		new: "	l.epoch = 1\n",
		pkg: leasePkg, run: "^TestALeaseEndsByItself$",
	},
	{
		name: "mount-after-the-lease", promise: "nothing is mounted under a lease that ended while the fence was told",
		in: "host/internal/fencing/lease", decl: "Lease.guard",
		old: "		return fmt.Errorf(\"tell the fence: %w\", err)\n	}\n	return l.Valid()\n",
		new: "		return fmt.Errorf(\"tell the fence: %w\", err)\n	}\n	return nil\n",
		pkg: leasePkg, run: "^TestALeaseEndsWhileTheFenceIsTold$",
	},
	{
		name: "promise-shortened", promise: "an answer that comes late shortens no promise of a later one",
		in: "host/internal/fencing/heartbeat", decl: "Tracker.promise",
		old: "keepUntil := received.Add(claim.ReleaseAfter(term.promise)); status != claim.NodeDown &&\n		keepUntil.After(n.keepUntil)",
		new: "keepUntil := received.Add(claim.ReleaseAfter(term.promise)); status != claim.NodeDown",
		pkg: heartbeatPkg, run: "^TestLateAnswerShortensNoPromise$",
	},
	{
		name: "datacenters-merge", promise: "agents of two datacenters do not join each other",
		in: "cluster/discovery", decl: "merge.NotifyMerge",
		old: "parsed.Datacenter != m.self.Datacenter",
		new: "parsed.Datacenter == \"\"",
		pkg: "./cluster/discovery", run: "^TestOthersAreKeptOut$",
	},
	{
		name: "second-cluster-beside", promise: "a single host with a ledger that is told to join others forms no second cluster",
		in: "host/internal/agent", decl: "member.checkLedger",
		old: "m.cfg.Server.BootstrapExpect == 1 && len(m.cfg.RetryJoin) == 0",
		new: "m.cfg.Server.BootstrapExpect == 1",
		pkg: "./host/internal/agent", run: "^TestLedgerOfASingleHost$",
	},
}
