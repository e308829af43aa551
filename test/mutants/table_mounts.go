package main

// ofMounts are mutants of what root mounts, and of the paths that it takes for that.
var ofMounts = []mutant{
	{
		name: "published-with-rights", promise: "set-user-ID programs and device files in a volume have no effect",
		file: "host/internal/workload/volumesteps/publish.go",
		old:  "	if !v.SUID() {\n",
		new:  "	if v.SUID() {\n",
		pkg:  workloadPkg, run: "^TestVolumesGiveNobodyRights$",
	},
	{
		name: "workload-adds-rights", promise: "only a volume's definition gives rights to what is in the volume",
		file: "host/internal/workload/volumesteps/claim.go",
		old:  "&& !drivers.Asks(info.MountOptions.Flags, flag, \"no\"+flag)",
		new:  "&& !drivers.Asks(options.Flags, flag, \"no\"+flag)",
		pkg:  workloadPkg, run: "^TestMountFlagsOfATenant$",
	},
	{
		name: "flags-unchecked-at-a-start", promise: "a mount flag reaches a driver only if its operator allows it",
		file: "host/internal/workload/volumesteps/claim.go",
		old:  "	if err := driver.CheckMountFlags(options.Flags); err != nil {\n",
		new:  "	if err := driver.CheckMountFlags(options.Flags[:0]); err != nil {\n",
		pkg:  workloadPkg, run: "^TestMountFlagsOfATenant$",
	},
	{
		name: "journal-elsewhere", promise: "csi-local writes no other volume than the one that it mounts",
		file: "drivers/csi-local/internal/filesystem/format.go",
		old:  "		if device != 0 || journal == 0 &&",
		new:  "		if device == 1 && journal == 1 &&",
		pkg:  "./drivers/csi-local", run: "^TestContentThatLeavesTheVolume$",
	},
	{
		name: "unmount-through-a-link", promise: "the host unmounts only what is in a driver's folder",
		file: "host/internal/csi/mounts/dir.go",
		old:  "	return unix.Unmount(c.path(), unix.UMOUNT_NOFOLLOW)\n",
		new:  "	return unix.Unmount(filepath.Join(dir, rel), unix.UMOUNT_NOFOLLOW)\n",
		pkg:  "./host/internal/csi/mounts", run: "^TestUnmountBesideALink$",
	},
	{
		name: "made-without-a-look", promise: "root makes and mounts nothing where another user can replace the path",
		file: "internal/trusted/trusted.go",
		old:  "	err := File(path)\n",
		new:  "	_, err := os.Lstat(path)\n",
		pkg:  "./internal/trusted", run: "^TestNothingIsMadeForOthers$",
	},
}
