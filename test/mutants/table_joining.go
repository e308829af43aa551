package main

const joiningTest = "^TestJoining$"

// joining are planted bugs of how hosts join a cluster, and of how a lost one is recovered.
var joining = []mutant{
	{
		name: "host-joins-as-another", promise: "a token to join makes nobody a host that the cluster has",
		in: "host/internal/apiserver/nodes", decl: "Handler.free",
		old: "	if taken {\n",
		new: "	if taken && name == \"\" {\n",
		pkg: clusterSuite, run: joiningTest,
	},
	{
		name: "node-joins-as-a-server", promise: "a token to join is for servers or for nodes",
		in: "host/internal/apiserver/nodes", decl: "Handler.SignCertificate",
		old: "	case c.Type == acl.JoinServer:\n",
		new: "	case c.Type.Joins():\n",
		pkg: clusterSuite, run: joiningTest,
	},
	{
		name: "authority-not-compared", promise: "a host that joins trusts no other authority than its token's",
		in: "host/internal/cli", decl: "member.join",
		old: "got != t.authority",
		new: "got == t.secret",
		pkg: clusterSuite, run: joiningTest,
	},
	{
		name: "ledger-moved-under-its-agent", promise: "a ledger is put aside only when no agent has it",
		in: "host/internal/cli", decl: "member.restart",
		old: "unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil",
		new: "unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil && ctx.Err() != nil",
		pkg: clusterSuite, run: joiningTest,
	},
	{
		name: "certificate-not-renewed", promise: "an agent that has joined renews its certificate before it expires",
		in: "host/internal/agent", decl: "member.renewCertificate",
		old: "m.certs.RenewAt()",
		new: "m.certs.NotAfter()",
		pkg: clusterSuite, run: joiningTest,
	},
	{
		name: "recovered-as-a-stranger", promise: "a recovered server is the one that its ledger knows",
		in: "host/internal/cli", decl: "keptData",
		old: "\"node.secret\", ",
		new: "",
		pkg: clusterSuite, run: joiningTest,
	},
}
