package main

const (
	csiLocalPkg     = "./drivers/csi-local"
	hostWorkloadPkg = "./host/internal/workload"
	tenant          = "a tenant who defines volumes or workloads"
)

// onMounts are attacks on what root mounts, and on the paths that it takes for that.
var onMounts = []attack{
	{
		who: workloadUser, tries: "become root, in a container or a unit, by a set-uid file or a device in its volume",
		stops: "the host gives each published mount `nosuid` and `nodev`, unless the volume's definition has `suid` or `dev`, and the driver's operator allows that",
		pkg:   hostWorkloadPkg, run: "^TestVolumesGiveNobodyRights$",
		worked:  "a9eff73: a user gets user id 0, and opens a device of its own: true",
		remains: "what was mounted before an upgrade keeps its flags until its next start",
	},
	{
		who: workloadUser, tries: "replace a destination where an access control list lets it write",
		stops: "a directory with such a list is taken for one that others can write in",
		pkg:   launchPkg, run: "^TestDestinationsThatAUserHasPrepared$/^a_directory_that_an_access_control_list_opens$",
		worked: "a9eff73: it is bound: …/001/volume …/001/acl/new rw,nosuid,nodev",
	},
	{
		who: workloadUser, tries: "have systemd mount over the host's files by a link in the place of a destination",
		stops: "`-o systemd` refuses a destination in another volume, or in a directory that another user than root can write in",
		pkg:   "./host/internal/cli", run: "^TestUnitsOfDestinationsThatAUserCanReplace$",
		worked:  `a9eff73: "BindPaths=/volume:…/home/data\n", <nil>`,
		remains: "lines that an earlier version printed, or that somebody has written",
	},
	{
		who: workloadUser, tries: "own `secrets_dir`, or replace it, and exchange tokens of other workloads",
		stops: "nobody but root and the agent's user can write in it or in a directory above it, or nothing is written",
		pkg:   "./host/internal/consul/secretsdir", run: "^TestDirectoryThatAUserHasPrepared$",
		worked: "a9eff73: a token is there; its directory can be moved by another user: true",
	},
	{
		who: workloadUser, tries: "own the data directory of csi-local, or have directories made by a link to it",
		stops: "the same",
		pkg:   csiLocalPkg + "/internal/store", run: "^TestDataDirectoryThatAUserHasPrepared$",
		worked: "a9eff73: it is used; made …/etc/volumes",
	},
	{
		who: tenant, tries: "mount with `errors=panic`, `suid`, `dev` or any other flag that its driver's operator has not allowed",
		stops: "`allowed_mount_flags`, where a volume is defined",
		pkg:   apiserverPkg, run: "^TestMountFlagsOfADefinition$",
		worked: "a9eff73: the driver made … {single-node-writer file-system ext4 [errors=panic]}",
	},
	{
		who: tenant, tries: "use such a flag in a workload, or with a volume of an older ledger",
		stops: "the node checks the flags before it claims anything; only the volume's definition can have `suid` and `dev`",
		pkg:   hostWorkloadPkg, run: "^TestMountFlagsOfATenant$",
		worked: "a9eff73: a panic: it is mounted; a user gets user id 0",
	},
	{
		who: tenant, tries: "have a driver mount whatever the attributes of an ephemeral volume say",
		stops: "`ephemeral_volumes`: the driver's operator opens it, to the namespaces that he names",
		pkg:   hostWorkloadPkg, run: "^TestEphemeralVolumeIsRefused$",
		remains: "whoever may start workloads in such a namespace chooses all attributes",
	},
	{
		who: tenant, tries: "get another workload's secrets, by an attribute that names it as the one that asks",
		stops: "keys with `csi.storage.k8s.io/` are refused, and the agent's own win",
		pkg:   hostWorkloadPkg, run: "^TestAttributesDoNotReplaceWhoAsks$",
	},
	{
		who: tenant, tries: "do the same by the `context` or `parameters` of a volume that it registers, creates, modifies or takes a snapshot of",
		stops: "the ledger refuses such keys in any case of letters, and the API what the ledger does not see",
		pkg:   apiserverPkg, run: "^TestReservedKeysReachNoDriver$",
		worked: `7e0896a: the driver got map[csi.storage.k8s.io/ephemeral:true csi.storage.k8s.io/pod.namespace:other]`,
	},
	{
		who: tenant, tries: "stop the host, or use another device, by a mount flag of csi-local (`errors=panic`, `journal_path`, `logdev`, …)",
		stops: "csi-local refuses them, whatever the host allows",
		pkg:   csiLocalPkg, run: "^TestFlagsThatStopTheHostOrLeaveTheVolume$",
		worked: "a9eff73: errors=panic: it is mounted with rw,errors=panic",
	},
	{
		who: tenant, tries: "write another volume, by a superblock that names it as the journal",
		stops: "csi-local mounts no ext4 with a journal on another device",
		pkg:   csiLocalPkg, run: "^TestContentThatLeavesTheVolume$",
		worked:  "a9eff73: it is mounted; the other volume is written: true",
		remains: "faults of the kernel's file systems, which see what a tenant has written to a block device",
	},
	{
		who: "a driver in a container", tries: "have the host unmount something else, by a link in the place of its own directory",
		stops: "the host unmounts relative to descriptors, and follows no link",
		pkg:   "./host/internal/csi/mounts", run: "^TestUnmountBesideALink$",
		worked: "a9eff73: after 25 tries the mount that the link leads to is unmounted",
	},
	{
		who: "a driver in a container", tries: "have a part of the host bound into a workload, by a link in a volume's path",
		stops: "`pannier workload run` follows no link on the way to a volume",
		pkg:   launchPkg, run: "^TestAVolumesPathThatIsALink$",
		worked:  "a9eff73: /csi/link/data is bound: true",
		remains: "Docker and systemd follow such links; a driver that mounts volumes for a workload can give it anything that the driver itself can read",
	},
	{
		who:   "a user who may mount volumes by sudo",
		tries: "have `mount.pannier` mount elsewhere, by a link in the place of the mount point, in a folder of its own",
		stops: "the mount point is opened once, by a path without links, and mounted to by its descriptor",
		pkg:   "./host/internal/cli", run: "^TestMountPointThatIsReplaced$",
		worked: "7e0896a: the volume is mounted where the link leads",
	},
}
