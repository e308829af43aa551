package main

const (
	apiserverPkg = "./host/internal/apiserver"
	weakToken    = "a caller with a weak token"
)

// ofTokens are attacks of callers of the API.
var ofTokens = []attack{
	{
		who: weakToken, tries: "make any call that its policies do not allow",
		stops: "[ACLs](../../docs/acl.md): each call has its need, by name",
		pkg:   apiserverPkg, run: "^TestWhoMayDoWhat$",
		remains: "without ACLs every certificate may call the whole API",
	},
	{
		who: weakToken, tries: "read, use, clone, register or remove a volume of another namespace, by its name or the driver's own id",
		stops: "the namespace is checked before anything is looked up",
		pkg:   suitePkg, run: "^TestAVolumeOfAnotherNamespace$",
		remains: "what nobody registered is open to whoever may register volumes",
	},
	{
		who: weakToken, tries: "see the volumes of other namespaces in lists",
		stops: "lists omit what the caller may not see",
		pkg:   apiserverPkg, run: "^TestVolumesOfAnotherNamespace$",
	},
	{
		who: weakToken, tries: "see the events of other namespaces",
		stops: "events are filtered by the caller's rights",
		pkg:   apiserverPkg, run: "^TestEventsAreFiltered$",
	},
	{
		who: weakToken, tries: "find out by any call, with random contents, whether an object of others exists",
		stops: "permission is checked before existence: the answer is the same",
		pkg:   suitePkg, run: "^TestWhatExistsIsNotTold$",
		remains: "who may register volumes learns that a driver's own id is taken; how long an answer takes is not compared",
	},
	{
		who: weakToken, tries: "have a process of others killed, by naming it as its workload's",
		stops: "only the process that started a workload names its process, over the unix socket, and only a descendant",
		pkg:   apiserverPkg, run: "^TestOnlyTheOwnerNamesItsProcess$",
		worked:  "925cf34^: got <nil> (unknown), want permission_denied",
		remains: "its own descendants",
	},
	{
		who: weakToken, tries: "send any bytes as the body of any call, in any encoding",
		stops: "it is refused, and nothing panics; `make fuzz`",
		pkg:   apiserverPkg, run: "^FuzzAPI$",
	},
	{
		who: "a thief of a token", tries: "go on after the token was deleted, on an open stream",
		stops: "the token is looked up at each call and at each message; `-ttl`",
		pkg:   apiserverPkg, run: "^TestStreamsEndWithTheirToken$",
		remains: "what it did before, and up to 15 s on agents without the ledger; the audit log has it",
	},
	{
		who: "a caller", tries: "control the terminal of who reads the audit log, by the names in its calls",
		stops: "control characters are escaped",
		pkg:   apiserverPkg, run: "^TestForgedAuditLines$",
		worked: `71b237a: a terminal would obey "…\x7f\u009b2J\u202e…"`,
	},
}
