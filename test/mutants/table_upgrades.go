package main

// upgrades are planted bugs of how the agent's program is replaced.
var upgrades = []mutant{
	{
		name: "untried-program", promise: "a program replaces the agent's only after it has come up with the agent's data",
		in: "host/internal/agent", decl: "agent.replace",
		old: "	err := next.Try(ctx, tryPatience+tryFactor*a.opening)\n",
		new: "	next.End()\n	err := context.Cause(ctx)\n",
		pkg: "./test/suite/e2e", run: "^TestBadProgramReplacesNoAgent$",
	},
	{
		name: "downgrade-trusts-ledger", promise: "an older program that is put back rebuilds a ledger that it cannot read",
		in: "cluster/state", decl: "markOpen",
		old: "	if string(mark) != closedMark {\n",
		new: "	if string(mark) == \"\" {\n",
		pkg: "./cluster/state", run: "^TestAnotherLayout$",
	},
	{
		name: "volume-field-lost", promise: "the ledger keeps every field of a record",
		in: "cluster/claim", decl: "Volume",
		old: "`json:\"grown,omitempty\" proto:\"-\"`",
		new: "`json:\"capacity,omitempty\" proto:\"-\"`",
		pkg: "./cluster/codec", run: "^TestRecords$",
	},
	{
		name: "entry-renamed", promise: "entries of existing logs keep their meaning",
		in: "cluster/command", decl: "EndWorkload",
		old: "`json:\"node,omitempty\"`",
		new: "`json:\"on_node,omitempty\"`",
		pkg: "./cluster/command", run: "^TestGoldenEntries$",
	},
	{
		name: "call-begun-too-late", promise: "a call is not begun by a program that is about to be replaced",
		in: "host/internal/system/handover", decl: "Sockets.enters",
		old: "	if s.held {\n",
		new: "	if s.tried {\n",
		pkg: "./host/internal/system/handover", run: "^TestARequestIsNotBegunTwice$",
	},
	{
		name: "next-request-read-early", promise: "of a call that is not begun nothing is read, also while the one before is answered",
		in: "host/internal/system/handover", decl: "Conn.Read",
		old: "	case !http2 && len(p) == 1:",
		new: "	case http2 && len(p) == 1:",
		pkg: "./host/internal/system/handover", run: "^TestTheNextRequestStaysInTheSocket$",
	},
	{
		name: "idle-connection-lost", promise: "a connection on which no call is answered is left to the next program",
		in: "host/internal/system/handover", decl: "Conn.Close",
		old: "	if !c.begun && c.of.sockets.Held() {\n",
		new: "	if !c.begun && c.of.sockets.tried {\n",
		pkg: "./host/internal/system/handover", run: "^TestEveryRequestIsAnsweredOnce$",
	},
	{
		name: "half-request-replaced", promise: "a call of which a part was read is answered by the program that has read it",
		in: "host/internal/system/handover", decl: "Sockets.enters",
		old: "	s.answering++\n",
		new: "",
		pkg: "./host/internal/system/handover", run: "^TestARequestIsNotBegunTwice$",
	},
	{
		name: "stop-not-passed-on", promise: "an agent that is told to stop while it is upgraded stops",
		in: "host/internal/system/handover", decl: "Sockets.Exec",
		old: "	if ctx.Err() != nil {\n		return fmt.Errorf(",
		new: "	if err != nil {\n		return fmt.Errorf(",
		pkg: "./host/internal/system/handover", run: "^TestStopBeforeTheNextProgram$",
	},
	{
		name: "trial-not-awaited", promise: "a program that replaces the agent's opens the data after the end of its trial",
		in: "host/internal/system/handover", decl: "Successor.Try",
		old: "	s.End()\n	return nil\n",
		new: "	_ = s.cmd.Process.Kill()\n	return nil\n",
		pkg: "./host/internal/system/handover", run: "^TestTrialIsAwaited$",
	},
	{
		name: "ready-too-early", promise: "a unit that systemd starts after the agent finds the API's socket",
		in: "host/internal/agent", decl: "Run",
		old: "	a := newAgent(cfg, version, logs, before, manager)\n",
		new: "	a := newAgent(cfg, version, logs, before, manager)\n	_ = manager.Tell(servicemanager.Ready)\n",
		pkg: "./test/suite/systemd", run: "^TestAfterTheAgent$",
	},
}
