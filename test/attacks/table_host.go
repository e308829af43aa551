package main

const localUser = "a local user"

// onTheHost are attacks of those who can read or call something on a host.
var onTheHost = []attack{
	{
		who: localUser, tries: "call the agent over its unix socket",
		stops: "the socket is 0660, of root and `socket_group`",
		pkg:   apiserverPkg, run: "^TestSocket$",
		remains: "root on the machine, and [what members of the group may](../../docs/operations/security.md#members-of-socket_group)",
	},
	{
		who: localUser + ", or root in a container that has the socket", tries: "get a unit's Consul token, by an abstract address that names the unit as systemd's does",
		stops: "the socket is 0600, and answers root in the unit's own control group only",
		pkg:   "./host/internal/consul/credentials", run: "^TestWhoGetsACredential$",
		remains: "root on the machine",
	},
	{
		who: localUser, tries: "read a service's token through Envoy's admin API (`/config_dump`), or use the service's upstreams",
		stops: "Envoy's sockets are in a folder that only the workload's user enters",
		pkg:   e2ePkg, run: "^TestAdminOfAProxy$",
		remains: "`connect { admin = \"tcp\" }` and `local_bind_port` are for every local user; the test has no Envoy, and listens where its " +
			"bootstrap says",
	},
	{
		who: localUser, tries: "call it as root, without a token, where `socket_root = false` or in a cluster",
		stops: "root has the rights of the policy `anonymous`, or none",
		pkg:   apiserverPkg, run: "^TestAnonymous$",
		remains: "root can read the agent's files",
	},
	{
		who: localUser, tries: "read a volume's secret in outputs, events, arguments, environments, logs and files",
		stops: "it is never there; files with secrets are 0600 or 0400",
		pkg:   "./test/suite/e2e", run: "^TestSecretsAreNeverShown$",
	},
	{
		who:   "a user who can write the agent's configuration or a directory above it",
		tries: "add a driver: a program that the agent runs as root",
		stops: "the agent does not start with a configuration that others than root and its own user could change",
		pkg:   "./host/internal/config", run: "^TestConfigurationThatOthersCanChange$",
		worked: "71b237a: the agent would run [{ID:evil … Command:[/bin/id] …}]",
	},
	{
		who: localUser, tries: "find a secret of a volume, a token or a key in a whole cluster: files, logs, events, audit, metrics, snapshots, stacks, core files",
		stops: "secrets are encrypted, or hashed, before they are stored; agents and plugins leave no core files",
		pkg:   suitePkg, run: "^TestASecretIsNowhere$",
		worked:  "891eb3a: server-1: the agent leaves a core file",
		remains: "the memory of a process that uses it, for root; swap, where memory is not locked",
	},
	{
		who: "a process of the agent's or a plugin's user", tries: "read keys and tokens in its memory, or from a core file",
		stops: "agent, fence and plugins are not dumpable (prctl(2)) and leave no core files",
		pkg:   suitePkg, run: "^TestMemoryStaysPrivate$",
		worked:  "71b237a: a plugin: another process of its user reads its memory layout, memory, files, environment",
		remains: "root and `CAP_SYS_PTRACE`; drivers, whose memory is theirs to protect",
	},
	{
		who: "a thief of a disk or a backup", tries: "read volumes' secrets",
		stops: "they are encrypted in log, ledger, snapshots and backups; keys are apart from backups",
		pkg:   suitePkg, run: "^TestKeysOfACluster$",
		remains: "a whole server's disk has both: encrypt it. `ledger_encryption` covers the ledger in Badger, not raft's log",
	},
}
