package main

// otherNodes are planted bugs of what is asked of other nodes.
var otherNodes = []mutant{
	{
		name: "agents-lend-their-rights", promise: "an agent that passes on a call for another node lends the caller none of its own rights",
		in: "host/internal/apiserver", decl: "Server.admit",
		old: `secret == "" && s.cfg.SocketRoot && c.Root {`,
		new: `secret == "" && s.cfg.SocketRoot && (c.Root || c.Cert != nil) {`,
		pkg: "./host/internal/apiserver", run: "^TestAskAnotherNode$",
	},
	{
		name: "answer-of-another-node", promise: "what another host answers is never taken for the answer of the node that was asked",
		in: "sdk/api", decl: "check",
		old: "case answered != node:\n",
		new: "case answered != node && answered == \"-\":\n",
		pkg: "./host/internal/apiserver", run: "^TestAnotherNodeDoesNotAnswer$",
	},
	{
		name: "any-certificate-of-a-node", promise: "a node is asked only where its own certificate is shown",
		in: "host/internal/peer/transport", decl: "Dialer.Agents",
		old: "return d.dial(ctx, addr, role, name, protocolsHTTP...)\n",
		new: "return d.dial(ctx, addr, role, \"\", protocolsHTTP...)\n",
		pkg: "./host/internal/apiserver", run: "^TestAnotherNodeDoesNotAnswer$",
	},
	{
		name: "bound-node-sees-others", promise: "what a node asks of another one is filtered by the namespaces that it is bound to",
		in: "host/internal/apiserver/asknode", decl: "Asker.wayTo",
		old: "if a.Direct || w.node.Role == discovery.Server {\n",
		new: "if a.Direct || true {\n",
		pkg: "./host/internal/apiserver", run: "^TestAskAnotherNodeWithFewRights$",
	},
	{
		name: "bound-node-through-a-server", promise: "a node's calls reach no other namespaces than its own, whichever server forwards them",
		in: "host/internal/apiserver/call", decl: "Caller.Origin",
		old: "strings.Cut(c.passedOn(), on)",
		new: "strings.Cut(c.Cert.String(), on)",
		pkg: apiserverPkg, run: "^TestABoundNodeThroughAServer$",
	},
	{
		name: "nodes-forward-for-nodes", promise: "a node forwards no calls of other nodes, which may be bound to less",
		in: "host/internal/apiserver", decl: "Server.gate",
		old: "!errors.Is(err, errNodeHere)",
		new: "err != nil",
		pkg: apiserverPkg, run: "^TestEveryDoor$",
	},
	{
		name: "claims-of-a-node-shown", promise: "a node's status shows the claims of visible namespaces only",
		in: "host/internal/apiserver", decl: "Server.filter",
		old: "		m.Claims = keep(m.GetClaims(), func(k *hostv1.Claim) bool { return c.Sees(k, acl.CSIReadVolume) })\n",
		new: "",
		pkg: apiserverPkg, run: "^TestNodeIsFiltered$",
	},
	{
		name: "agents-refused-for-strangers", promise: "an agent is not refused because strangers hold all connections",
		in: "host/internal/peer/transport", decl: "Limits.begin",
		old: "l.all >= share(maxAllStrangers, 8) && !l.known[addr]",
		new: "l.all >= share(maxAllStrangers, 8)",
		pkg: "./host/internal/peer/transport", run: "^TestAgentsAreLetInBesideStrangers$",
	},
	{
		name: "closed-connections-count", promise: "a connection that is closed counts no more",
		in: "host/internal/peer/transport", decl: "Limits.join",
		old: "		decrease(l.peers, peer)\n",
		new: "",
		pkg: "./host/internal/peer/transport", run: "^TestClosedConnectionsDoNotCount$",
	},
	{
		name: "changes-left-out", promise: "a change that was allowed is in the audit log, however many callers without a token there are",
		in: "host/internal/apiserver", decl: "Server.record",
		old: "stranger && (!allowed || !needOf(procedure).changes)",
		new: "stranger",
		pkg: apiserverPkg, run: "^TestAuditOfStrangersIsBounded$",
	},
	{
		name: "snapshots-of-others-told", promise: "events tell of snapshots of visible volumes only",
		in: "host/internal/apiserver", decl: "seesEvent",
		old: "(volume == \"\" || c.AllowNamespace(namespaceIn(volume), acl.CSIReadVolume))",
		new: "(volume == \"\" || namespaceIn(volume) != \"\")",
		pkg: apiserverPkg, run: "^TestEventsAreFiltered$",
	},
	{
		name: "audit-log-open", promise: "an audit log that others may read is closed to them",
		in: "host/internal/apiserver", decl: "AuditLog.open",
		old: "info.Mode().Perm()&0o077 != 0",
		new: "info.Mode().Perm()&0o007 != 0",
		pkg: apiserverPkg, run: "^TestAuditIsRotated$",
	},
}
