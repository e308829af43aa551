package main

const (
	statePkg   = "./cluster/state"
	claimPkg   = "./cluster/claim"
	peerPkg    = "./host/internal/peer"
	clusterPkg = "./cluster"
	raftPkg    = "./cluster/raftnode"
)

// ledger are planted bugs of the rules of claims, of their replication, and of who may change them.
var ledger = []mutant{
	{
		name: "second-writer-admitted", promise: "claims that an access mode does not allow together never exist together",
		in: "cluster/claim", decl: "rule.forbids",
		old: "return held.Mode != Read\n",
		new: "return held.Mode != Read && held.Mode != Write\n",
		pkg: claimPkg, run: "^TestModeTable$",
	},
	{
		name: "leaving-claim-ignored", promise: "a claim counts until it is freed",
		in: "cluster/claim", decl: "Take",
		old: "func(h Claim) bool { return cell.forbids(&want, &h) }",
		new: "func(h Claim) bool { return h.State == Taken && cell.forbids(&want, &h) }",
		pkg: claimPkg, run: "^TestNoSequenceBreaksTheModes$", args: []string{"-rapid.nofailfile"},
	},
	{
		name: "external-id-unchecked", promise: "a driver's volume is registered once",
		in: "cluster/state", decl: "volumeWrites.checkDistinct",
		old: "		if other != v.VolumeRef {\n",
		new: "		if other != v.VolumeRef && other.Namespace == v.Namespace {\n",
		pkg: statePkg, run: "^TestOneVolumeIsRegisteredOnce$",
	},
	{
		name: "snapshot-name-taken-over", promise: "the name of a snapshot in a namespace is that of one volume's",
		in: "cluster/state", decl: "volumeWrites.PutSnapshot",
		old: "if err := old.CheckSource(next.PluginID, next.ExternalVolumeID); err != nil {",
		new: "if err := old.CheckSource(next.PluginID, old.ExternalVolumeID); err != nil {",
		pkg: statePkg, run: "^TestSnapshotNames$",
	},
	{
		name: "name-without-namespace", promise: "volumes that are created under one name are two at their driver",
		in: "host/internal/csi/controllers", decl: "volumeName",
		old: `return hashed(cmp.Or(label, v.Namespace+"-"+v.ID), clusterID, "volume", v.Namespace, v.ID)`,
		new: `return hashed(cmp.Or(label, v.Namespace+"-"+v.ID), clusterID, "volume", v.ID)`,
		pkg: "./host/internal/csi/controllers", run: "^TestVolumeName$",
	},
	{
		name: "key-ignored", promise: "a write whose answer was lost is applied once, however often it is sent",
		in: "cluster/state", decl: "writeTx.apply",
		old: "	case found:\n		return tx.repeat(c, before)\n",
		new: "",
		pkg: statePkg, run: "^TestRepeatedCommands$",
	},
	{
		name: "start-key-ignored", promise: "a start that is repeated is no new start",
		in: "cluster/state", decl: "writeTx.StartWorkload",
		old: "if known && tx.fingerprint != nil && bytes.Equal(workload.StartedBy, tx.fingerprint) {",
		new: "if known && tx.fingerprint == nil && bytes.Equal(workload.StartedBy, tx.fingerprint) {",
		pkg: statePkg, run: "^TestRepeatedStartIsNoNewStart$",
	},
	{
		name: "late-start-granted", promise: "a start of a run that was ended is refused",
		in: "cluster/state", decl: "writeTx.checkRun",
		old: "	if !ended {\n		return nil\n	}\n",
		new: "	if !ended || runID != \"\" {\n		return nil\n	}\n",
		pkg: statePkg, run: "^TestLateStart$",
	},
	{
		name: "later-claim-freed", promise: "a release that is late does not free a later claim",
		in: "cluster/state", decl: "writeTx.advancing",
		old: "item.Index != 0 && item.Index != held.Index {",
		new: "item.Index != 0 && item.Index > held.Index {",
		pkg: statePkg, run: "^TestFencing$",
	},
	{
		name: "node-secret-unchecked", promise: "a machine cannot take another's name in the ledger",
		in: "cluster/state", decl: "nodeWrites.checkSame",
		old: "	if old.SecretHash != \"\" && old.SecretHash != next.SecretHash {\n",
		new: "	if old.SecretHash != \"\" && next.SecretHash == \"\" {\n",
		pkg: statePkg, run: "^TestNodesKeepWhatTheLedgerKnows$",
	},
	{
		name: "down-goes-on-after-return", promise: "the release of a down node stops when the node is back",
		in: "cluster/state", decl: "nodeWrites.SetNodeStatus",
		old: "n.Status != c.Status || n.StatusIndex != c.Continues",
		new: "n.Status == \"\" || n.StatusIndex == 0",
		pkg: statePkg, run: "^TestDownStopsWhereANodeIsBack$",
	},
	{
		name: "purged-in-use", promise: "a node with claims is not removed from the ledger",
		in: "cluster/state", decl: "nodeWrites.checkUnused",
		old: "	if len(held) > 0 {\n",
		new: "	if len(held) > 1<<20 {\n",
		pkg: statePkg, run: "^TestDeleteNodeThatIsInUse$",
	},
	{
		name: "boot-unchecked", promise: "another boot of a machine takes no claim while the earlier one has its lease",
		in: "cluster/claim", decl: "Node.AnotherBoot",
		old: "bootID != \"\" && n.BootID != bootID && n.Status != NodeDown\n",
		new: "bootID == \"\" && n.Status != NodeDown\n",
		pkg: statePkg, run: "^TestAnotherBootWaits$",
	},
	{
		name: "node-unbound", promise: "a node that is bound to namespaces starts no workload of others",
		in: "cluster/claim", decl: "Node.CheckNamespace",
		old: "	if len(n.Namespaces) == 0 || AmongNamespaces(",
		new: "	if len(n.Namespaces) >= 0 || AmongNamespaces(",
		pkg: statePkg, run: "^TestABoundNode$",
	},
	{
		name: "node-asks-for-itself", promise: "a node claims a volume only for a caller who may use it",
		in: "host/internal/peer", decl: "caller.mayStart",
		old: "	if err != nil || repeated {\n",
		new: "	if err != nil || repeated || n.token == \"\" {\n",
		pkg: peerPkg, run: "^TestCallersOfANode$",
	},
	{
		name: "node-repeats-more", promise: "a node repeats without a caller only the claims that its workload has",
		in: "host/internal/peer", decl: "caller.startOf",
		old: "				return h.Volume == v && h.Node == n.Name &&",
		new: "				return h.Volume.Namespace == v.Namespace && h.Node == n.Name &&",
		pkg: peerPkg, run: "^TestCallersOfANode$",
	},
	{
		name: "server-secret-unchecked", promise: "a machine with a server's name and certificate is not that server",
		in: "host/internal/peer", decl: "caller.same",
		old: "	if n.record.SecretHash != \"\" && !sameHash(n.record.SecretHash, n.hash) {\n",
		new: "	if !n.isServer() && n.record.SecretHash != \"\" && !sameHash(n.record.SecretHash, n.hash) {\n",
		pkg: peerPkg, run: "^TestMachineOfTheSameName$",
	},
	{
		name: "another-machine-answers", promise: "the leader's calls to a node fail on another machine of its name",
		in: "host/internal/peer", decl: "Node.expected",
		old: "		if hash != n.Info.SecretHash || boot != \"\" && boot != n.Info.BootID {\n",
		new: "		if hash == \"\" || boot != \"\" && boot != n.Info.BootID {\n",
		pkg: peerPkg, run: "^TestMachineOfTheSameName$",
	},
	{
		name: "loss-not-recorded", promise: "a node learns which claims were taken from it by force",
		in: "cluster/state", decl: "writeTx.AdvanceClaims",
		old: "	return result, tx.noteLost(lost)\n",
		new: "	return result, tx.noteLost(lost[len(lost):])\n",
		pkg: statePkg, run: "^TestNodeIsToldOfLostClaims$",
	},
	{
		name: "eligibility-remembered", promise: "a drained or ineligible node gets no new workload",
		in: "cluster/state", decl: "writeTx.checkEligible",
		old: "	refusal := n.CheckEligible()\n",
		new: "	var refusal error\n",
		pkg: statePkg, run: "^TestNodesThatTakeNoWorkloads$",
	},
	{
		name: "term-unchecked", promise: "what a leader decided has no effect in another term",
		in: "cluster/state", decl: "writeTx.apply",
		old: "	if term := command.Term(c); term != 0 && term != tx.term {\n",
		new: "	if term := command.Term(c); term != 0 && tx.term == 0 {\n",
		pkg: statePkg, run: "^TestDecisionsHaveATerm$",
	},
	{
		name: "decision-forwarded", promise: "what a deposed leader decided is not sent to its successor",
		in: "cluster", decl: "Node.Apply",
		old: "	if term, decides := ctx.Value(termKey{}).(uint64); decides {\n",
		new: "	if term, decides := ctx.Value(termKey{}).(uint64); decides && term == 0 {\n",
		pkg: clusterPkg, run: "^TestDecisionOfADeposedLeader$",
	},
	{
		name: "reads-unconfirmed", promise: "reads include everything acknowledged before them",
		in: "cluster", decl: "Node.verifyLeader",
		old: "	if err := n.verifying.join(ctx, n.verify); err != nil {\n",
		new: "	if err := ctx.Err(); err != nil {\n",
		pkg: clusterPkg, run: "^TestLeaderIsCutOff$",
	},
	{
		name: "stale-confirmation", promise: "reads include everything acknowledged before them",
		in: "cluster/raftnode", decl: "confirmations.majority",
		old: "a.term == term && a.question >= question {",
		new: "a.term == term {",
		pkg: raftPkg, run: "^(TestAnswersFromBeforeTheQuestion|TestMajorityOfVoters)$",
	},
	{
		name: "joins-two-clusters", promise: "servers of two clusters never mix",
		in: "cluster/raftnode", decl: "manager.admit",
		old: "r.Joins != identity {",
		new: "r.Joins == identity+name {",
		pkg: clusterPkg, run: "^TestForeignCluster$",
	},
	{
		name: "confirmed-without-vote", promise: "only servers with a vote confirm a leader",
		in: "cluster/raftnode", decl: "confirmations.majority",
		old: "		if s.Suffrage != raft.Voter {\n",
		new: "		if s.ID == \"\" {\n",
		pkg: raftPkg, run: "^TestMajorityOfVoters$",
	},
	{
		name: "late-by-two-granted", promise: "a start of an ended run is refused, however many runs came after it",
		in: "cluster/state", decl: "writeTx.checkRun",
		old: "	if !ended {\n		var err error\n",
		new: "	if !ended && w.Node == runID {\n		var err error\n",
		pkg: statePkg, run: "^TestStartThatIsLateByTwo$",
	},
	{
		name: "earlier-leader-obeyed", promise: "a restarted agent does nothing for a leader before a server has answered it",
		in: "host/internal/peer", decl: "Terms.check",
		old: "	if !answered && method != peerv1",
		new: "	if !answered && method == \"\" && method != peerv1",
		pkg: peerPkg, run: "^TestRestartedAgentCannotTellWhoLeads$",
	},
}
