package main

const e2ePkg = "./test/suite/e2e"

// ofAccess are attacks of callers with a weak token, and with none, on what the API gives.
var ofAccess = []attack{
	{
		who: weakToken, tries: "be another team in Consul: get the token of a service `payments`, register it, or stand before it as a terminating gateway",
		stops: "a policy lists the names of services that a namespace may have (`services`), for minted tokens and logins alike",
		pkg:   e2ePkg, run: "^TestAnIdentityOfAnotherTeam$",
		worked:  "71b237a: with \"\", identity: <nil>; claim ... done; register payments ... done; identify payments ... done",
		remains: "a name that policies give to two namespaces. Root of a host has the host's own Consul token, which registers any service, but with no identity",
	},
	{
		who: weakToken, tries: "list, read, change and detach volumes through a front door that may do more than its user",
		stops: "calls for a user have the user's token, an empty one too, and an empty token is nobody's",
		pkg:   "./test/suite/nomad", run: "^TestAWeakTokenThroughTheDoor$",
		worked:  "d6cf8d3, with calls for users without a token made by the plugin itself: got <nil>, want the status 403",
		remains: "a front door that calls for its users with its own token",
	},
	{
		who: weakToken, tries: "log in to Consul as a service of another namespace, should a host sign the JWT",
		stops: "the documented binding rule, which looks at the namespace",
		pkg:   "./host/internal/cli", run: "^TestDocumentedAuthMethod$",
		worked:  "71b237a: pannier gave namespace \"dev\" the token of \"web\"",
		remains: "a binding rule without a selector",
	},
	{
		who: weakToken, tries: "learn from a refusal which namespace has a volume, by the driver's own id of the volume or of its snapshot",
		stops: "the namespace is named only to who may list its volumes",
		pkg:   apiserverPkg, run: "^TestVolumesOfAnotherNamespace$",
		worked:  "71b237a: it is told whose volume it is: the capability \"csi-write-volume\" on namespace \"till\" is missing",
		remains: "that somebody has registered an id of the driver that the caller knows",
	},
	{
		who: weakToken, tries: "make a volume of another namespace's snapshot, alone or of a group, once its volume is deregistered, or of one that the ledger does not know",
		stops: "the ledger says whose a snapshot is, whatever becomes of its volume; unknown ones need `csi-foreign-snapshots`, clones likewise",
		pkg:   apiserverPkg, run: "^TestSnapshotsOfAnotherNamespace$",
		worked:  "fb41c82: got <nil> (unknown), want permission_denied; the driver has the volume shop-stolen of snap-till-theirs-s",
		remains: "a volume that nobody has registered any more can be registered by whoever knows its id",
	},
	{
		who: weakToken, tries: "have another namespace's volume a second time, or use it, by another writing of its id (`share//dir/`, `dir/../theirs`) at a driver that reads ids as paths",
		stops: "the ledger compares ids without the differences of paths, and refuses `..`",
		pkg:   "./cluster/state", run: "^TestOneVolumeIsWrittenInManyWays$",
		worked:  "66ab3e8: \"srv#exports/a/#vol#u#\": <nil>",
		remains: "what only the driver knows to be the same, such as two names of a server, or upper and lower case",
	},
	{
		who: weakToken, tries: "have the secrets that a user of nomad-api gives for one driver sent to every driver, by a list of snapshots that names none",
		stops: "such a list takes no secrets",
		pkg:   "./test/suite/nomad", run: "^TestOneHost$/^snapshots$",
		worked: "66ab3e8: got <nil>, want the status 400",
	},
	{
		who: stranger, tries: "call the API over HTTPS with a token that it has found, and no certificate",
		stops: "the API needs a certificate besides the token",
		pkg:   apiserverPkg, run: "^TestAPIOverHTTPSNeedsACertificate$",
		worked:  "71b237a: got <nil> (unknown), want permission_denied",
		remains: "health, metrics and public keys are open",
	},
	{
		who: stranger, tries: "have the agent hold streams of events and of changes, without a token",
		stops: "callers without a token are refused before anything else where no policy `anonymous` is",
		pkg:   apiserverPkg, run: "^TestStreamOfAStrangerIsNotHeld$",
		worked: "71b237a: got <nil> (unknown), want permission_denied",
	},
	{
		who: stranger, tries: "read health, metrics and public keys of plain HTTP with a page in a browser there, by a name that resolves to the agent (DNS rebinding)",
		stops: "plain HTTP answers to IP addresses, localhost and the host's own names only",
		pkg:   apiserverPkg, run: "^TestRebinding$",
		worked: "71b237a: /v1/health of attacker.example: 200 OK: {\"status\":\"ok\"}",
	},
	{
		who: stranger, tries: "keep others from the metrics, and streams held, by not reading answers",
		stops: "[bounds](../../docs/operations/security.md#bounds)",
		pkg:   apiserverPkg, run: "^TestSlowReadersOfTheMetrics$",
		worked:  "71b237a: the metrics: 503 Service Unavailable: Limit of concurrent requests reached (4), try again later.",
		remains: "a caller at the same address as the reader shares its bound",
	},
	{
		who: stranger, tries: "fill the disk with lines of the audit log",
		stops: "[bounds](../../docs/operations/security.md#bounds); what is left out is counted, and never a line about a token or an allowed change",
		pkg:   apiserverPkg, run: "^TestAuditOfStrangersIsBounded$",
		worked:  "71b237a: 1500 calls without a token took 630ms and made 1500 lines, more than 110",
		remains: "864,000 lines a day: rotate the log",
	},
}
