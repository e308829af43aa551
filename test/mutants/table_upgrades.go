package main

// upgrades are planted bugs of how the agent's program is replaced.
var upgrades = []mutant{
	{
		name: "untried-program", promise: "a program replaces the agent's only after it has come up with the agent's data",
		in: "host/internal/agent", decl: "agent.replace",
		old: "	if err = next.Try(ctx, tryPatience+tryFactor*a.opening); err == nil {\n",
		new: "	if next.End(); err == nil {\n",
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
		old: "`json:\"grown,omitempty\"`",
		new: "`json:\"capacity,omitempty\"`",
		pkg: "./cluster/codec", run: "^TestRecords$",
	},
	{
		name: "request-half-read", promise: "a request that is read while its connection is handed over is not lost",
		in: "host/internal/system/handover", decl: "Conn.Close",
		old: "	for c.interrupted && c.reading != nil {",
		new: "	for !c.interrupted && c.reading != nil {",
		pkg: "./host/internal/system/handover", run: "^TestRequestIsReadWhileItIsParked$",
	},
	{
		name: "half-request-refused", promise: "a request that was read in part is answered by the next program",
		in: "host/internal/system/handover", decl: "Conn.Write",
		old: "	if c.interrupted && !c.wrote {\n",
		new: "	if c.interrupted && c.over {\n",
		pkg: "./host/internal/system/handover", run: "^TestHalfReadRequestIsParked$",
	},
	{
		name: "preface-lost", promise: "a connection of HTTP/2 that is handed over keeps its beginning",
		in: "host/internal/system/handover", decl: "Conn.note",
		old: "preface) && !c.busy && !c.interrupted {",
		new: "preface) && !c.busy {",
		pkg: "./host/internal/system/handover", run: "^TestRequestIsReadWhileItIsParked$",
	},
	{
		name: "call-begun-too-late", promise: "a call is not begun by a program that is about to be replaced",
		in: "host/internal/system/handover", decl: "Conn.Enter",
		old: "	if c.frozen || c.interrupted {\n		return false\n",
		new: "	if c.frozen && c.busy {\n		return false\n",
		pkg: "./host/internal/system/handover", run: "^TestEveryRequestIsAnsweredOnce$",
	},
	{
		name: "stop-not-passed-on", promise: "an agent that is told to stop while it is upgraded stops",
		in: "host/internal/system/handover", decl: "Kept.Exec",
		old: "	if ctx.Err() != nil {\n		return fmt.Errorf(",
		new: "	if settling.Err() != nil {\n		return fmt.Errorf(",
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
		old: "	log := newLogger(cfg, recent, logs)\n",
		new: "	log := newLogger(cfg, recent, logs)\n	_ = manager.Tell(servicemanager.Ready)\n",
		pkg: "./test/suite/systemd", run: "^TestAfterTheAgent$",
	},
}
