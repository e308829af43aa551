package main

const (
	supervisorPkg   = "./host/internal/pluginhost/supervisor"
	devicesPkg      = "./host/internal/devices"
	hostservicesPkg = "./host/internal/pluginhost/hostservices"
	driversPkg      = "./host/internal/csi/drivers"
)

// plugins are planted bugs of how plugins' files and devices are taken.
var plugins = []mutant{
	{
		name: "calls-not-tried", promise: "a plugin that fails the calls of its kind does not take over",
		file: "host/internal/agent/probe.go",
		old:  "		if !supervisor.IsFailure(was) {\n",
		new:  "		if supervisor.IsFailure(was) {\n",
		pkg:  "./test/suite/e2e", run: "^TestMeshPluginThatFailsItsCallsDoesNotTakeOver$",
	},
	{
		name: "state-of-another", promise: "a plugin reads its own state only",
		file: "host/internal/pluginhost/hostservices/state.go",
		old:  "(\"plugin-state/\" + plugin)",
		new:  "(\"plugin-state/\" + plugin[:0])",
		pkg:  hostservicesPkg, run: "^TestStateIsOfOnePlugin$",
	},
	{
		name: "held-device-lost", promise: "a device plugin that lost what workloads hold does not take over",
		file: "host/internal/devices/watch.go",
		old:  "d.Holder.ID != \"\" && !has(reported, d.ID)",
		new:  "d.Holder.ID == \"\" && !has(reported, d.ID)",
		pkg:  devicesPkg, run: "^TestAProcessThatLosesAHeldDeviceIsRefused$",
	},
	{
		name: "failures-uncounted", promise: "a generation that fails its calls is rolled back",
		file: "host/internal/pluginhost/supervisor/outcomes.go",
		old:  "	case codes.Internal, codes.Unknown, codes.DeadlineExceeded, codes.Unimplemented:\n		return true\n",
		new:  "	case codes.Unknown:\n		return true\n",
		pkg:  supervisorPkg, run: "^(TestFailingGenerationIsRolledBack|TestHangingGenerationIsRolledBack)$",
	},
	{
		name: "failures-not-compared", promise: "a generation is not rolled back for what failed before it too",
		file: "host/internal/pluginhost/supervisor/swap.go",
		old:  "	next.outcomes.before = gen.outcomes.tallies()\n",
		new:  "",
		pkg:  supervisorPkg, run: "^TestFailuresOfBothGenerations$",
	},
	{
		name: "hung-process-waited-for", promise: "a plugin's process that hangs holds up neither a swap nor its callers",
		file: "host/internal/pluginhost/supervisor/swap.go",
		old:  " && !gen.answers(i.sup.cfg.StopTimeout) {\n",
		new:  " && gen == nil {\n",
		pkg:  supervisorPkg, run: "^TestAHungProcessIsReplaced$",
	},
	{
		name: "given-up-for-good", promise: "a call that an old process does not finish in time can be repeated",
		file: "host/internal/pluginhost/supervisor/outcomes.go",
		old:  "		return replaced{errAbandoned}\n",
		new:  "		return errAbandoned\n",
		pkg:  supervisorPkg, run: "^TestGrace$",
	},
	{
		name: "kept-copies-removed", promise: "the copies that served last can be brought back",
		file: "host/internal/pluginhost/supervisor/datadir.go",
		old:  "			keep[k.SHA256] = true\n",
		new:  "			_ = k\n",
		pkg:  supervisorPkg, run: "^TestKeptVersions$",
	},
	{
		name: "plugin-twice", promise: "two files of one plugin never run at once",
		file: "host/internal/pluginhost/supervisor/identity.go",
		old:  "		case rank.has:\n			rival, best = o, rank\n",
		new:  "		case rank.has:\n",
		pkg:  supervisorPkg, run: "^TestTwoFilesOfOnePlugin$",
	},
	{
		name: "half-a-file", promise: "a plugin's file is not run before it is complete",
		file: "host/internal/pluginhost/supervisor/whole.go",
		old:  "	if !bytes.Equal(magic, []byte(elf.ELFMAG)) {\n",
		new:  "	if bytes.Equal(magic, []byte(elf.ELFMAG)) {\n",
		pkg:  supervisorPkg, run: "^TestHalfAFileIsNotStarted$",
	},
	{
		name: "file-being-written", promise: "a plugin's file is not run while it is being written",
		file: "host/internal/pluginhost/supervisor/whole.go",
		old:  "	case errors.Is(err, unix.EAGAIN):\n		return errWriting\n",
		new:  "	case errors.Is(err, unix.EAGAIN):\n		return nil\n",
		pkg:  supervisorPkg, run: "^TestHalfAFileIsNotRun$",
	},
	{
		name: "config-in-place", promise: "a changed config block is tried in a new process before it replaces what serves",
		file: "host/internal/pluginhost/supervisor/launch.go",
		old:  "	if gen.record.Address == \"\" { // otherwise",
		new:  "	if i.spec = i.wanted; true { // otherwise",
		pkg:  supervisorPkg, run: "^TestChangedConfigUnderLoad$",
	},
	{
		name: "good-config-forgotten", promise: "while a changed config block is refused, a restart uses the one before it",
		file: "host/internal/pluginhost/supervisor/settings.go",
		old:  "	known[run.SHA256] = i.spec.settings()\n",
		new:  "",
		pkg:  supervisorPkg, run: "^TestRefusedConfigIsNotNeeded$",
	},
	{
		name: "copy-forgotten", promise: "a plugin without its file goes on from its copy, under the next host too",
		file: "host/internal/pluginhost/supervisor/supervisor.go",
		old:  "		if goodName.MatchString(name) {\n			names = append(names, name)\n",
		new:  "		if goodName.MatchString(name) && s.found[name] != nil {\n			names = append(names, name)\n",
		pkg:  supervisorPkg, run: "^TestAFileIsGone$",
	},
	{
		name: "signature-unchecked", promise: "no plugin is started without a valid signature where that is required",
		file: "host/internal/pluginhost/signing/policy.go",
		old:  "		if read.Verify(k.key, text) {\n			return nil\n",
		new:  "		if known {\n			return nil\n",
		pkg:  supervisorPkg, run: "^TestUnsignedIsNotStarted$",
	},
	{
		name: "copy-unsigned", promise: "the signature is checked of the copy that runs, not only of the file",
		file: "host/internal/pluginhost/supervisor/store.go",
		old:  "	if bin.version, err = s.checkSigned(name, src, temp, proof); err != nil {\n",
		new:  "	if err != nil {\n",
		pkg:  supervisorPkg, run: "^TestSwappedAfterTheCheck$",
	},
	{
		name: "device-twice", promise: "a device is given once, whichever plugins report it",
		file: "host/internal/devices/registry.go",
		old:  "	return [2]key{{\"group \" + group, id}, {\"plugin \" + plugin, id}}\n",
		new:  "	return [2]key{{\"plugin \" + plugin, id}, {\"plugin \" + plugin, id}}\n",
		pkg:  devicesPkg, run: "^TestADeviceThatTwoPluginsReportIsGivenOnce$",
	},
	{
		name: "read-only-dropped", promise: "a volume that is published read-only cannot be written to",
		file: "plugins/csi-bridge/internal/bridge/publish.go",
		old:  "				Readonly:          req.ReadOnly,\n",
		new:  "				Readonly:          false,\n",
		pkg:  "./plugins/csi-bridge", run: "^TestConformance$/^csi-local$",
	},
	{
		name: "kit-leaves-volumes", promise: "an interrupted `pannier plugin test` leaves neither volumes nor mounts",
		file: "sdk/conformance/volume.go",
		old:  "	if err := l.do(ctx, \"Delete\", v.remove); err != nil {\n",
		new:  "	if err := ctx.Err(); err != nil {\n",
		pkg:  "./sdk/conformance", run: "^TestInterrupted$",
	},
	{
		name: "kit-leaves-tokens", promise: "`pannier plugin test` leaves no token in Consul, even if the plugin does not revoke it",
		file: "sdk/conformance/run.go",
		old:  "		r.revokeLeft(context.WithoutCancel(ctx))\n",
		new:  "",
		pkg:  "./sdk/conformance", run: "^TestBad$/^revokes-not-identity$",
	},
	{
		name: "driver-restarted-in-use", promise: "a driver in use is not restarted for a changed configuration",
		file: "host/internal/csi/drivers/registry.go",
		old:  "rec.Launch.Runs == runs(spec) || len(r.users(spec)) == 0 {",
		new:  "rec.Launch.Runs == runs(spec) || len(r.users(spec)) >= 0 {",
		pkg:  driversPkg, run: "^TestChangedConfigurationWaits$",
	},
	{
		name: "controller-of-another-driver", promise: "a controller of another driver than the node service is not called",
		file: "host/internal/csi/drivers/parts.go",
		old:  "		c.Healthy, c.Message = false, why\n",
		new:  "		c.Message = why\n",
		pkg:  driversPkg, run: "^TestControllerOfAnotherDriver$",
	},
	{
		name: "controller-calls-to-the-node-service", promise: "calls to a controller that is a process of its own go there",
		file: "host/internal/csi/drivers/driver.go",
		old:  "return c.call(ctx, id, wait, Driver.ForController, fn)",
		new:  "return c.call(ctx, id, wait, func(d Driver) Driver { return d }, fn)",
		pkg:  driversPkg, run: "^TestCallsOfAControllerApart$",
	},
	{
		name: "mounts-stopped-with-the-driver", promise: "children of a driver that serve mounts outlive it while it is in use",
		file: "host/internal/system/process/stop.go",
		old:  "m.PID != g.ref.PID && (!in[m.Parent] || ServesMounts(m.PID))",
		new:  "m.PID != g.ref.PID && !in[m.Parent]",
		pkg:  "./host/internal/system/process", run: "^TestStopKeepingMounts$",
	},
	{
		name: "left-forgotten", promise: "what a driver leaves behind is known after a restart of the agent, and ended",
		file: "host/internal/csi/drivers/left.go",
		old:  "	i.rec.Left = append(i.rec.Left, ref)\n",
		new:  "",
		pkg:  driversPkg, run: "^TestWhatADriverLeaves$",
	},
	{
		name: "journal-not-read", promise: "what is in use is known before the workloads are restored",
		file: "host/internal/workload/volumes.go",
		old:  "	if !restored {\n",
		new:  "	if restored && !restored {\n",
		pkg:  workloadPkg, run: "^TestInUseBeforeTheWorkloadsAreRestored$",
	},
}
