package main

const (
	launchPkg    = "./host/internal/cli/launch"
	workloadUser = "a workload's own user"
)

// ofWorkloads are attacks of the programs that use volumes.
var ofWorkloads = []attack{
	{
		who: workloadUser, tries: "have a volume mounted over the host's files, or directories made there, by a link in its volume or in a directory of its own",
		stops: "destinations are opened without following links, and refused where another user than root could replace one",
		pkg:   launchPkg, run: "^TestDestinationsThatAUserHasPrepared$",
		worked:  "0db16e4^: it is bound: …/001/volume …/001/etc rw,relatime",
		remains: "containers mount by the rules of their engine",
	},
	{
		who: workloadUser, tries: "become root by a set-uid file or a device in its volume",
		stops: "`nosuid`, `nodev`, `no_new_privs`",
		pkg:   launchPkg, run: "^TestNoNewPrivileges$",
		worked: "0db16e4^: exit code 1 (NoNewPrivs is 0)",
	},
	{
		who: workloadUser, tries: "type commands into root's terminal (`TIOCSTI`)",
		stops: "a program of another user has a session of its own",
		pkg:   launchPkg, run: "^TestNoNewPrivileges$",
		worked:  "be93d3e^: exit code 3 (the program is in the session of root's terminal)",
		remains: "it can still read what is typed",
	},
	{
		who: workloadUser, tries: "have root copy a command of its own, by the name of a control group that still has a volume",
		stops: "below a user's own service manager no unit is named, and elsewhere only what no shell interprets",
		pkg:   "./host/internal/system/owner", run: "^FuzzOf$",
		worked: `71b237a: the command is "systemctl stop $(reboot).service"`,
	},
	{
		who: workloadUser, tries: "do the same by a container's name",
		stops: "only names that Docker and Podman accept are printed",
		pkg:   "./host/internal/system/owner", run: "^FuzzContainerNames$",
		remains: "a user with containers of its own names them; the name may be that of another's",
	},
	{
		who: tenant, tries: "take all of a node's ports, dynamic or static, from other namespaces, and learn from a refusal who has one",
		stops: "`ports { max_per_namespace }`; a refusal names workloads of the caller's namespace only",
		pkg:   "./host/internal/consul/ports", run: "^TestQuotaOfANamespace$",
		worked:  "995db68, with the check left out: dynamic: [20002 20003], <nil>; another namespace gets []",
		remains: "several namespaces together, and that a port is taken",
	},
	{
		who: tenant, tries: "learn from a refusal which workload of another namespace has a device",
		stops: "the same rule",
		pkg:   "./host/internal/workload/devices", run: "^TestRefusalHidesOtherNamespaces$",
		worked: `995db68, with the namespace left out: it is told: acme/gpu/T4 "a" is held by workload "till/vault"`,
	},
	{
		who: tenant, tries: "learn from a refusal, by a cycle of waits, which workloads of another namespace wait",
		stops: "the same rule",
		pkg:   "./cluster/state", run: "^TestCycles$",
		worked:  `04345251: "q" waits for "secret/payroll" waits for "r"`,
		remains: "that there is a cycle",
	},
	{
		who: "who answers at Consul's address", tries: "end the plugins' processes or have them take another token, by any answer",
		stops: "an answer has a bound, and a null or a token that was not asked for is an error; `make fuzz`",
		pkg:   "./plugins/sids/internal/tokens", run: "^FuzzAnswers$",
		worked: "04345251: panic: invalid memory address, in checkIdentity; a token of another: {Accessor: ...}",
	},
	{
		who: tenant, tries: "have the host's Consul agent call any address for it, such as the cloud's metadata, and show the answer as a check's output",
		stops: "checks are about the host's own addresses and the `check_addresses` of the agent's configuration, names included",
		pkg:   hostWorkloadPkg, run: "^TestChecksReachThisHostAlone$",
		worked:  "bf87040: another host: <nil>",
		remains: "any port of the host itself; redirects, which Consul's agent follows",
	},
	{
		who: "whoever may register a proxy or write its configuration in Consul",
		tries: "take the host's CPU and memory by a template of 27 bytes (`envoy_bootstrap_json_tpl`), in the plugin of " +
			"all workloads",
		stops: "a process of its own executes a template, two at a time, with bounds of CPU, memory and output",
		pkg:   "./plugins/envoy-bootstrap/internal/envoy", run: "^TestTemplateWithoutEnd$",
		worked:  "7e0896a: it ended after 89 s and 3.9 GB (want the JSON of envoy.config.bootstrap.v3.Bootstrap)",
		remains: "2 s of CPU for each start, and for each retry of a changed specification",
	},
	{
		who:   "a user of the unix socket who may only start workloads",
		tries: "have the agent kill a process of root, which got the PID of the one that connected",
		stops: "a peer is known by `SO_PEERPIDFD` and its start time, when it connects and whenever it is looked for",
		pkg:   "./host/internal/system/process", run: "^TestPIDOfAPeerIsReused$",
		worked:  "7e0896a: process 12599 is found for the peer that has ended: <nil>",
		remains: "before Linux 6.5: a PID that is used again before the connection is accepted",
	},
	{
		who:   "a user of the unix socket who may only start workloads",
		tries: "name a process as its workload's that has the PID of the workload's owner",
		stops: "an owner is compared by its start time, too",
		pkg:   "./host/internal/workload", run: "^TestALaterProcessIsNoOwner$",
	},
	{
		who: workloadUser, tries: "fill the tmpfs of all workloads' tokens, so that none is renewed and no workload starts",
		stops: "each workload has a tmpfs of its own, of 1 MiB and 1,024 files, also where `secrets_dir` is on one",
		pkg:   "./host/internal/consul/secretsdir", run: "^TestAFullTmpfs$",
		worked:  "7e0896a: another workload: the secrets directory is full: no space left on device",
		remains: "an agent that is not root mounts nothing: its workloads have its own user",
	},
}
