package main

const (
	peerPkg     = "./host/internal/peer"
	hostileNode = "a node with a hostile root"
)

// ofNodes are attacks of a host with a certificate of the cluster.
var ofNodes = []attack{
	{
		who: hostileNode, tries: "act as a server, or ask another node for something",
		stops: "its certificate has the role `node`, which raft and the calls of servers refuse",
		pkg:   peerPkg, run: "^TestANodeIsNoServer$",
	},
	{
		who: hostileNode, tries: "claim for another node, release others' claims, write what only servers write",
		stops: "its certificate's name and its own secret (`node.secret`) must be those of the node it speaks for; it may send few commands",
		pkg:   peerPkg, run: "^TestAMaliciousNode$",
		remains: "it may keep volumes that it holds claims on, until `detach -force` and the storage cut it off",
	},
	{
		who: hostileNode, tries: "do the same in a real cluster, by each call that agents make",
		stops: "the server that is called",
		pkg:   suitePkg, run: "^TestIntruders$/^calls_of_a_node$",
	},
	{
		who: hostileNode, tries: "get the secrets of volumes that it has no claim on",
		stops: "the leader gives a volume's secrets only to a node with a claim on it",
		pkg:   peerPkg, run: "^TestSecretsOnlyWithAClaim$",
	},
	{
		who: hostileNode, tries: "have a server read a request of 100 MB",
		stops: "[bounds](#bounds)",
		pkg:   suitePkg, run: "^TestIntruders$/^huge_requests$",
	},
	{
		who: hostileNode, tries: "hold more connections than its share",
		stops: "[bounds](#bounds)",
		pkg:   transportPkg, run: "^TestManyConnectionsOfOnePeer$",
	},
	{
		who: "a thief of a node's certificate", tries: "be that node, with an empty data directory",
		stops: "a node needs its secret too",
		pkg:   peerPkg, run: "^TestMachineOfTheSameName$",
		remains: "a stolen server key is a server, until the authority is changed",
	},
	{
		who: "a thief of a node's certificate", tries: "make the first token, directly or through a server",
		stops: "only the role `cli` may, and a server does not lend its own",
		pkg:   "./host/internal/apiserver", run: "^TestCallersOverTLS$",
		remains: "make that token before you hand out certificates",
	},
}
