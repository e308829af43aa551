package main

const (
	suitePkg     = "./test/suite/security"
	transportPkg = "./host/internal/peer/transport"
	stranger     = "someone on the network"
)

// ofStrangers are attacks of callers without a certificate, a token or the gossip key.
var ofStrangers = []attack{
	{
		who: stranger, tries: "speak an old TLS, or answer in a server's place, to read or change calls, raft and snapshots in transit",
		stops: "TLS 1.3 only, with certificates on both ends",
		pkg:   "./host/internal/system/pki", run: "^TestBothEndsSayWhoTheyAre$",
		remains: "who talks to whom, and how much",
	},
	{
		who: stranger, tries: "call the API, raft or an agent without a certificate of this authority, or with an expired one",
		stops: "the handshake",
		pkg:   transportPkg, run: "^TestStrangersAreRefused$",
		remains: "health, metrics and public keys are open",
	},
	{
		who: stranger, tries: "join the cluster: with no token to join, one of another kind, one that was revoked, or, with a good one, under the name of a host that it has",
		stops: "the token's type, and the names of members and nodes",
		pkg:   "./test/suite/cluster", run: "^TestJoining$",
		worked:  "with the look at the names left out: server-3: exit status 0, want the code 4",
		remains: "a good token, until it expires: its holder becomes a host of a new name",
	},
	{
		who: stranger, tries: "stand between a host that joins and the servers, to learn the gossip key or sign its certificate",
		stops: "the checksum of the authority in the token",
		pkg:   "./test/suite/cluster", run: "^TestJoining$",
		worked:  "with the comparison left out: server-2: exit status 1, want the code 4",
		remains: "who has seen the token knows the secret in it",
	},
	{
		who: stranger, tries: "do the same on the agents of a real cluster",
		stops: "the handshake: ALPN says what a connection is for",
		pkg:   suitePkg, run: "^TestIntruders$/^certificates$",
	},
	{
		who: stranger, tries: "read, forge or replay gossip, or join with another key",
		stops: "`encrypt_file` (AES-GCM); gossip gives addresses only, and whoever answers there needs the certificate",
		pkg:   suitePkg, run: "^TestIntruders$/^gossip$",
		remains: "without the key, anyone can pretend that hosts fail",
	},
	{
		who: stranger, tries: "hold connections open by thousands, silent or slow",
		stops: "[bounds](../../docs/operations/security.md#bounds)",
		pkg:   suitePkg, run: "^TestIntruders$/^slow_clients,_and_thousands$",
		remains: "a flood that fills the line itself",
	},
	{
		who: stranger, tries: "fill the log with refusals",
		stops: "ten lines, then one a second with the number of the others",
		pkg:   transportPkg, run: "^TestRefusalsAreLoggedSparingly$",
	},
	{
		who: stranger, tries: "send any bytes to the `rpc` port, instead of a handshake and after one, on each protocol",
		stops: "the connection is ended, others are served; `make fuzz`",
		pkg:   transportPkg, run: "^FuzzPort$",
	},
	{
		who: stranger, tries: "name any protocols in the handshake, with a certificate of each role",
		stops: "only those that the role may use are used",
		pkg:   transportPkg, run: "^FuzzALPN$",
	},
	{
		who: stranger, tries: "send any bytes to the port of gossip, where there is no `encrypt_file`",
		stops: "what is not a message of an agent changes no member",
		pkg:   "./cluster/discovery", run: "^FuzzGossip$",
		remains: "well-formed messages: set `encrypt_file`",
	},
	{
		who: "a thief of a server's certificate", tries: "send any bytes to raft and to what servers ask each other",
		stops: "the connection is ended, others are served",
		pkg:   "./cluster/raftnode", run: "^FuzzStreams$",
		remains: "well-formed messages: change the authority",
	},
}
