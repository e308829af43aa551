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
		who: hostileNode, tries: "take another namespace's volume and its secrets, stop the workload that has it (`replaces`), or look at it, without a caller",
		stops: "the server that leads checks and audits the caller's token, which travels with the call ([what a node may have](../../docs/operations/security.md#what-a-node-may-have))",
		pkg:   suitePkg, run: "^TestAHostileNode$/^without_a_token$",
		worked:  "71b237a: a claim on another namespace's volume: <nil>; it has the secret: ...password...swordfish; the claims on prod/db are [node-2 taken]",
		remains: "what it holds; the secrets of volumes whose driver has its controller there",
	},
	{
		who: hostileNode, tries: "do that with a token of another namespace",
		stops: "the same check",
		pkg:   suitePkg, run: "^TestAHostileNode$/^with_a_token_of_another_namespace$",
	},
	{
		who: hostileNode, tries: "get more for a workload that it has: another volume, another service's identity",
		stops: "only what the ledger has for the workload is repeated without a caller",
		pkg:   suitePkg, run: "^TestAHostileNode$/^more_for_a_workload_that_runs$",
	},
	{
		who: hostileNode, tries: "leave the version of its agent out of its record, or lower it",
		stops: "the server that leads checks the callers of all nodes alike",
		pkg:   peerPkg, run: "^TestNodeWithoutAVersionIsChecked$",
	},
	{
		who: hostileNode, tries: "use the leader's statement about another run",
		stops: "a statement is sealed for one run of one node",
		pkg:   peerPkg, run: "^TestCallersOfANode$",
	},
	{
		who: hostileNode, tries: "use a stolen token, a management token too, outside the namespaces that the node is bound to, on its own agent, a server or another node",
		stops: "`pannier node namespaces`: each start, and each call of the API that comes from the node; a node's API refuses other nodes",
		pkg:   suitePkg, run: "^TestAHostileNode$/^bound_to_a_namespace$",
		worked:  "71b237a, where no node could be bound; without the last part: a stop with a stolen token on node-1: <nil>",
		remains: "it is used from another host, with a certificate for that",
	},
	{
		who: hostileNode, tries: "read of other nodes, through a server, what is in namespaces that it is not bound to",
		stops: "nodes are asked by servers only, which filter the answer by what the asking node is bound to",
		pkg:   apiserverPkg, run: "^TestAskAnotherNodeWithFewRights$",
	},
	{
		who: hostileNode, tries: "do that in a real cluster, without a token, and with those of other namespaces and of its own",
		stops: "the same",
		pkg:   suitePkg, run: "^TestAHostileNode$/^what_other_hosts_run,_asked_through_its_own_agent$",
	},
	{
		who: hostileNode, tries: "answer in another node's place",
		stops: "a node is asked over a connection whose certificate has its name, and the answer must name it",
		pkg:   apiserverPkg, run: "^TestAnotherNodeDoesNotAnswer$",
		remains: "it says of itself what it likes",
	},
	{
		who: hostileNode, tries: "have a server read a request of 100 MB",
		stops: "[bounds](../../docs/operations/security.md#bounds)",
		pkg:   suitePkg, run: "^TestIntruders$/^huge_requests$",
	},
	{
		who: hostileNode, tries: "hold more connections than its share",
		stops: "[bounds](../../docs/operations/security.md#bounds)",
		pkg:   transportPkg, run: "^TestManyConnectionsOfOnePeer$",
	},
	{
		who: hostileNode, tries: "do that through a server that does not lead, which forwards the call with its own certificate",
		stops: "a server names the certificate that it saw with each call that it forwards; the leader reads what that node is bound to",
		pkg:   apiserverPkg, run: "^TestABoundNodeThroughAServer$",
		worked: "7e0896a6: got <nil> (unknown), want permission_denied",
	},
	{
		who: hostileNode, tries: "do that through another node, which is bound to nothing, or by any other call, through any door",
		stops: "a node forwards no calls of other nodes; [the walk](../../docs/acl-calls.md) over all calls and doors",
		pkg:   apiserverPkg, run: "^TestEveryDoor$",
		worked:  "00c25637: ACLService/BootstrapACL is not implemented; want a node's certificate is for the API of servers",
		remains: "of what has no namespace, all but what is about agents may be read",
	},
	{
		who: hostileNode, tries: "have the servers end any token of Consul, by its accessor as that of a workload's token",
		stops: "an accessor comes from Consul's answer only",
		pkg:   "./host/internal/consul/tokens", run: "^TestAccessorOfAStranger$",
		worked: "00c25637: the ledger has the accessor 77777777-0000-4000-8000-000000000000 of a node; the stranger's token is gone",
	},
	{
		who: hostileNode, tries: "do that with the accessor as the id that it chooses",
		stops: "before a token is ended by the servers' own, its description and identity are compared, as when one is minted",
		pkg:   "./plugins/sids/internal/tokens", run: "^TestRevokeIsOfTheSubject$",
		worked:  "00c25637: got <nil>, want AlreadyExists; an operator's token is gone",
		remains: "the tokens of its own workloads",
	},
	{
		who: hostileNode, tries: "write that workloads have ended, which run elsewhere or are in namespaces that the node is not bound to",
		stops: "the end of a run changes no workload of another node, and begins none where the node may not",
		pkg:   "./cluster/state", run: "^TestEndsOfABoundNode$",
		worked:  "00c25637: the ledger has db of prod as ended, and LastEndedRunID:other of another node's workload",
		remains: "it may end what it runs",
	},
	{
		who: hostileNode, tries: "blame an operator for a release that it has forced",
		stops: "the ledger has the node's certificate before the name that the node gives",
		pkg:   peerPkg, run: "^TestForcedByIsTheNodesWord$",
		worked: "00c25637: it was forced by \"pannier://dc1/cli/boss\"",
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
	{
		who: hostileNode, tries: "be asked as a controller with the secrets of all namespaces' volumes, by a driver of their id in its own file (`type = \"monolith\"`)",
		stops: "calls with secrets go to servers, to the node that reported the driver's controller first, and to those that an operator approved",
		pkg:   "./host/internal/csi/controllers", run: "^TestSecretsNeedAnApproval$",
		worked:  "733ca4a: asked with secrets were map[n1:3 n2:3 n3:3]",
		remains: "it is asked what carries no secrets, and can answer wrongly",
	},
	{
		who: hostileNode, tries: "approve itself, while it reports that it is drained",
		stops: "a node's report has its drain's end and nothing else",
		pkg:   peerPkg, run: "^TestWhatADrainedNodeAsksFor$",
		worked: "733ca4a, with the fields of before: it asks for a driver's secrets: <nil>",
	},
	{
		who: weakToken, tries: "do the same by `driver register` with `plugin:write`",
		stops: "a controller is registered with `operator:write`",
		pkg:   apiserverPkg, run: "^TestControllersAreRegisteredByOperators$",
		worked: "733ca4a: got <nil> (unknown), want permission_denied",
	},
}
