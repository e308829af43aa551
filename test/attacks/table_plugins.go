package main

const driversPkg = "./host/internal/csi/drivers"

// ofPlugins are attacks of plugins, drivers, and those who can write their files.
var ofPlugins = []attack{
	{
		who: "a user who can write a plugin's file or its directory", tries: "have the agent run it as root",
		stops: "owner and mode of the file and of all directories above it are checked; `checksum`",
		pkg:   "./host/internal/pluginhost/supervisor", run: "^TestVerifyRefuses$",
	},
	{
		who: "a user who can write a directory above the plugin directory", tries: "replace it",
		stops: "owner and mode of all directories above it are checked",
		pkg:   "./host/internal/pluginhost/supervisor", run: "^TestOpenRefuses$",
		worked: "71b237a: everybody's one above: opened",
	},
	{
		who: "a user who can write a driver's program or a directory above it", tries: "have the agent run another as root",
		stops: "owner and mode of the program and of all directories above it are checked at each start; `checksum`",
		pkg:   driversPkg, run: "^TestProgramThatOthersCanReplace$",
		worked:  "71b237a: the stranger's program was run, as user 0",
		remains: "what else is in `command` is not checked, such as the script of an interpreter",
	},
	{
		who: "a driver that runs as another user", tries: "become root by a set-user-id program",
		stops: "`no_new_privs`",
		pkg:   driversPkg, run: "^TestDriverGainsNoPrivileges$",
		worked: `71b237a: user nobody read what is only root's: "of root"`,
	},
	{
		who: "a driver or plugin", tries: "use up the machine's memory, processes or open files",
		stops: "`limits`",
		pkg:   driversPkg, run: "^TestDriverAboveItsLimits$",
		worked:  "71b237a: no limits could be set",
		remains: "drivers have limits only where `limits` is set",
	},
	{
		who: "a driver or plugin", tries: "write lines of the agent into its log, or control the terminal that shows it",
		stops: "an entry of the log is one line under the name of who wrote it; control characters are escaped",
		pkg:   "./host/internal/agent", run: "^TestForgedLogLines$",
		worked:  "71b237a: 2026-01-01T00:00:00.000Z [INFO]  pannier: all is well: (a line of its own)",
		remains: "what it says under its own name",
	},
	{
		who: "a driver or plugin", tries: "do so by an event",
		stops: "texts of events are escaped",
		pkg:   "./host/internal/system/events", run: "^TestForgedEvents$",
		worked: `71b237a: "ok\n2026-01-01  agent  up\x1b[2J\u009b\u202e"`,
	},
	{
		who: "a driver or plugin", tries: "control the terminal of who runs a command",
		stops: "what is printed is escaped, in JSON too",
		pkg:   "./host/internal/cli", run: "^TestNoTextControlsATerminal$",
		worked: `71b237a: a terminal would obey "BindPaths=/a\x1bc\rb:/b\n"; with -o json: "\u009b2J\u202e"`,
	},
	{
		who: "a hostile plugin", tries: "print any handshake, such as one with the address of another program",
		stops: "the host connects only to a socket in the directory that it gave the plugin",
		pkg:   "./host/internal/managed/goplugin", run: "^FuzzHandshake$",
	},
	{
		who: "a front door whose process is root's", tries: "call more of the API than its policy allows, with its token, without one, or as a forwarded call of root",
		stops: "the host knows the plugin by its connection, and gives the call the rights of the plugin's token only",
		pkg:   apiserverPkg, run: "^TestAFrontDoorAsksForMore$",
		remains: "a process of root can call the API over the agent's socket where `socket_root` is true: let it run as another `user`",
	},
	{
		who: "root or a plugin of one host, without a token for it", tries: "read what another host runs, through the own agent (`-node`)",
		stops: "the node checks the caller's own token; an agent that passes a call on has no rights to lend",
		pkg:   apiserverPkg, run: "^TestAskAnotherNode$",
	},
	{
		who: "a hostile driver", tries: "answer any bytes, or errors with the secrets of the call",
		stops: "the call fails with an error that names it; secrets of the request are redacted",
		pkg:   "./plugins/csi-bridge/internal/bridge", run: "^FuzzAnswers$",
		remains: "what a driver says is no secret of the call",
	},
}
