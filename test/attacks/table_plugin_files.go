package main

const (
	installPkg    = "./host/internal/pluginhost/install"
	supervisorPkg = "./host/internal/pluginhost/supervisor"
	pluginFile    = "whoever puts a file into `plugin_dir`, by mistake too"
	pluginServer  = "whoever serves plugins that are installed, or the network to there"
	pluginWriter  = "whoever can write to `plugin_dir`, or to where its plugins come from"
)

// ofPluginFiles are attacks with the files of the plugin directory.
var ofPluginFiles = []attack{
	{
		who: pluginFile, tries: "give one device to two workloads by a second file of its plugin",
		stops: "a plugin runs once, by the name and kind that it reports; the second file is refused with an event",
		pkg:   supervisorPkg, run: "^TestTwoFilesOfOnePlugin$",
		worked: "86246d4: the copy is running, and the processes are [31716 31831]",
	},
	{
		who: "a device plugin", tries: "have a device given away that another plugin reports, and a workload has",
		stops: "a device is held by its vendor, type, name and id, whichever plugins report it, over restarts of the agent",
		pkg:   "./host/internal/workload/devices", run: "^TestADeviceThatTwoPluginsReportIsGivenOnce$",
		worked:  "86246d4: one has [p/a], and two has [q/a] too: <nil>",
		remains: "a plugin that gives the same device another id, under another vendor, type or name",
	},
	{
		who: pluginFile, tries: "have half a file run as root: the writer pauses, or dies",
		stops: "a file is taken when no process has it open for writing, and what its ELF headers name is within it",
		pkg:   supervisorPkg, run: "^TestBadPrograms$",
		worked: "86246d4: half a file was run: the process ended: signal: segmentation fault",
		remains: "half a script whose writer died; on network file systems, which do not say who writes, a file of its " +
			"full size with gaps",
	},
	{
		who: pluginWriter, tries: "have the agent run a plugin that nobody trusted has signed",
		stops: "`plugin_signing` with `require_signature`: such a file is not started, nor does it replace what serves",
		pkg:   supervisorPkg, run: "^TestUnsignedIsNotStarted$",
		remains: "what a trusted key has signed, in any version; a process that was started before the key was removed",
	},
	{
		who: pluginWriter, tries: "change a plugin's file between the check of its signature and its start",
		stops: "the copy that runs is what is checked",
		pkg:   supervisorPkg, run: "^TestSwappedAfterTheCheck$",
	},
	{
		who: pluginServer, tries: "have another binary installed, or a part of one",
		stops: "`pannier agent plugin install` checks sums, signatures and lengths before anything is run, and installs whole files; " +
			"https only",
		pkg: installPkg, run: "^TestRefused$",
		remains: "where neither `-sha256` nor a key is given: whatever the server has",
	},
	{
		who: pluginServer, tries: "write elsewhere, by the names or links in an archive or a list of sums",
		stops: "names that lead out, links and devices are refused, and archives have bounds",
		pkg:   installPkg, run: "^TestRefused$",
	},
	{
		who: pluginServer, tries: "fill the disk with an archive of 200 bytes, whose file is a hole of 8 GiB",
		stops: "nothing of an archive is read before its checksum is proven, or unpacked at all; holes count as bytes",
		pkg:   installPkg, run: "^TestHugeArchive$",
		worked: "7e0896a: a hole, an archive of 186 bytes: it is neither a Linux program nor a script (after 64 MiB were " +
			"written, with a bound of 1 MiB)",
		remains: "up to 1 GiB of one plugin's file, or 4 GiB of the archive itself, until its signature is checked",
	},
	{
		who: pluginFile, tries: "leave the host without storage: delete the file of a plugin, or its x bits",
		stops: "the copy that served goes on over restarts of the agent, until `pannier plugin remove`; event and status",
		pkg:   supervisorPkg, run: "^TestAFileIsGone$",
		worked: "86246d4: no such plugin: \"fixture\" is neither in /tmp/sv3315653250/plugins nor configured (there are: [])",
	},
	{
		who: pluginFile, tries: "make a workload's stop hang, by deleting csi-bridge and starting the agent again",
		stops: "the kept copy releases the volumes; `pannier plugin remove` names the workloads that depend on a plugin",
		pkg:   "./test/suite/e2e", run: "^TestThePluginsFileIsDeleted$",
	},
	{
		who:   "the user to whom a front door's socket belongs, or as whom a plugin runs",
		tries: "get a file of root by a link in the place of the socket, or of the plugin's certificate",
		stops: "owners and modes are set by a descriptor, of what has the type and the one name that was made",
		pkg:   "./host/internal/pluginhost/hostservices", run: "^TestSocketThatItsOwnerHasReplaced$",
		worked: "7e0896a: <nil>; root's file is of user 0, mode 0100666",
	},
}
