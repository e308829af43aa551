package main

const (
	raftPkg    = "./cluster/raftnode"
	clusterPkg = "./cluster"
	gossiper   = "a thief of the gossip key"
)

// floods are attacks on the memory and the descriptors of an agent.
var floods = []attack{
	{
		who: stranger, tries: "fill the agent's memory with bodies that are begun and never finished, over one connection",
		stops: "the certificate and the token are checked before a body is read; [bounds](../../docs/operations/security.md#bounds) on what is in flight, in all and of each caller",
		pkg:   suitePkg, run: "^TestIntruders$/^stalled_bodies$",
		worked: "efd83ab: nobody, to the http port: 799 MiB of 800 were taken, and 1115 MiB of memory. " +
			"An operator, to the API: 799 MiB and 548 MiB; a node, to the leader: 799 MiB and 814 MiB. " +
			"Now: 4 MiB and 1 MiB; 185 MiB (most of it refused) and 51 MiB; 32 MiB and 20 MiB",
		remains: "32 MiB for each certificate, 128 MiB in all, and 1 MiB more for each other peer",
	},
	{
		who: stranger, tries: "take all descriptors with idle connections, so that root, raft and heartbeats get none",
		stops: "[bounds](../../docs/operations/security.md#bounds) on connections by address, user and certificate, which leave room for all other kinds; the log names the address",
		pkg:   suitePkg, run: "^TestIntruders$/^idle_connections$",
		worked: "efd83ab, with 1,024 descriptors: 964 connections are kept open, connection 964: i/o timeout; the only " +
			"warning was that the port cannot take connections. Now: 64 are kept open",
		remains: "from many addresses, the `http` port can be kept busy",
	},
	{
		who: stranger, tries: "fill the agent's memory through the gossip port, with states of 19 MiB without the key",
		stops: "[bounds](../../docs/operations/security.md#bounds) on what is read of connections before it is decrypted",
		pkg:   suitePkg, run: "^TestIntruders$/^stalled_bodies$",
		worked:  "efd83ab: nobody, to the gossip port: 177 MiB of memory, above the 1.6 GiB of the attacks before. Now: 0 MiB",
		remains: "64 MiB in all; from three addresses the exchange of whole states can be held up, not gossip by UDP",
	},
	{
		who: "a local user", tries: "keep root out by connections to the unix socket",
		stops: "100 connections for a user who is not root",
		pkg:   transportPkg, run: "^TestManyConnectionsOfOneUser$",
	},
	{
		who: "a caller with a certificate", tries: "have a request of any size read that is not a snapshot",
		stops: "[bounds](../../docs/operations/security.md#bounds)",
		pkg:   "./host/internal/apiserver", run: "^TestLargeBodies$",
	},
	{
		who:   "any token, and the API's group on the unix socket",
		tries: "fill the agent's memory with requests of 4 MiB of empty objects, which take 180 times as much when decoded",
		stops: "a request has at most 20,000 parts, counted before one is made, in each encoding; it counts as it is in memory",
		pkg:   "./host/internal/apiserver", run: "^TestManySmallParts$",
		worked: "7e0896a: application/json; charset=utf-8 of 3 MiB took 523 MiB of memory, application/proto 740 MiB",
	},
	{
		who: "any token", tries: "have bodies read and decoded of calls that it may not make",
		stops: "64 KiB are read, unless the token has the call's permissions in any namespace; then those of the object's are checked",
		pkg:   "./host/internal/apiserver", run: "^TestNoPermissionNoBody$",
		worked: "7e0896a: the answer is 403, after 2097170 bytes were read",
	},
}

// byGossip are attacks with the gossip key.
var byGossip = []attack{
	{
		who: gossiper, tries: "remove healthy servers from raft, by packets that say that they have left",
		stops: "a server is removed when it says itself, over TLS, that it leaves, or does not answer; never below `min_quorum`",
		pkg:   clusterPkg, run: "^TestForgedLeave$",
		worked:  "efd83ab: server-2 was removed, by two packets",
		remains: "hosts that seem to have failed or left for a moment, until they contradict",
	},
	{
		who: gossiper, tries: "make nodes lose the leader, and so their leases, by packets that say that all servers have left",
		stops: "a node keeps the server that answered last until it does not answer",
		pkg:   "./host/internal/peer/route", run: "^TestForgedLeaves$",
		worked:  "622aabc: asked []: no leading server was reached (no server is known",
		remains: "a node that has just started, or during an election, finds no server",
	},
	{
		who: gossiper, tries: "keep a cluster from being formed, from growing or from being written to, by servers that are only announced, with any tags",
		stops: "gossip gives addresses only: a server counts by what it says itself, over TLS",
		pkg:   clusterPkg, run: "^TestAServerOfGossipOnly$",
		worked:  "7e0896a6: it did not come to this: server-1 is ready; before b632d5c3 the tag ledger=-1 refused each command of a formed cluster",
		remains: "questions to addresses where nobody answers",
	},
	{
		who: gossiper, tries: "have one server vote for two, by announcing its address as another's",
		stops: "raft connects to the certificate's name, and looks for a server where it has registered, too",
		pkg:   raftPkg, run: "^TestForgedAddress$",
		worked: "efd83ab: \"c\" answers for b",
	},
	{
		who: "an operator's mistake", tries: "let servers leave until too few vote",
		stops: "`min_quorum`, if it is set",
		pkg:   clusterPkg, run: "^TestLeaveKeepsTheQuorum$",
	},
}
