package drivers

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pannier/pannier/test/lib/hostpath"
	"github.com/pannier/pannier/test/lib/testbin"
)

// driver is a column of the matrix.
type driver struct {
	name    string
	program func(t testing.TB) string
	// args are its arguments, as in a csi_driver block, with ${own} for the directory of its folders.
	args []string
	// fetched is the program of a driver that is not built here, in a folder that $PANNIER_DRIVERS names.
	fetched string
	// quick is one that make test runs, as a process.
	quick bool
	// volume is added to the specification of each volume.
	volume string
	// size of a volume; empty: 64MiB.
	size string
	// folders are its volumes, without a file system of their own.
	folders bool
	// onlyEphemeral volumes, read-only, with the file given.
	onlyEphemeral bool
	// serve makes what its volumes are on.
	serve func(t testing.TB, share string) storage
	// standIns are scripts for programs that this machine may not have, by name.
	standIns map[string]string
	// refuses maps a row to the driver's own words. No capability of CSI covers these.
	refuses map[string]string
	// refusesLate is a driver that creates volumes of which it cannot be given a block device.
	refusesLate bool
	// once maps calls that succeed only once, against the specification, to the driver's words for the second time.
	once map[string]string
	// lost maps calls that fail after the driver was killed, because it has its volumes in memory, to its words.
	lost map[string]string
}

func all() []driver {
	return []driver{
		{
			name:    "csi-local",
			quick:   true,
			program: func(t testing.TB) string { return testbin.Build(t, "drivers/csi-local") },
			args:    []string{"-endpoint", "${endpoint}", "-node-id", "${node.name}", "-data-dir", "${own}/state"},
		},
		{
			name:    "csi-driver-host-path " + hostpath.Version,
			quick:   true,
			program: hostpath.Binary,
			args: []string{
				"-drivername", "hostpath.csi.k8s.io", "-endpoint", "${endpoint}", "-nodeid", "${node.name}",
				"-statedir", "${own}/state", "-enable-attach",
			},
		},
		{
			name:    "csi-driver-host-path " + hostpath.FirstVersion + ", CSI 1.0",
			quick:   true,
			program: hostpath.FirstBinary,
			args: []string{
				"--drivername", "csi-hostpath", "--endpoint", "${endpoint}", "--nodeid", "${node.name}",
			},
			refuses: map[string]string{
				"block device": "Block Volume not supported", "ephemeral volume": "mount failed",
			},
			once: map[string]string{"NodeUnpublishVolume": "Unmount failed"},
			lost: map[string]string{"CreateSnapshot": "volumeID is not exist"},
		},
		{
			name:    "ceph-csi's layout",
			program: func(t testing.TB) string { return testbin.Build(t, "test/suite/drivers/cephlike") },
			args:    []string{"-endpoint", "${endpoint}", "-nodeid", "${node.name}", "-share", "${own}/share"},
			volume:  "secrets {\n  userID  = \"pannier\"\n  userKey = \"ceph-key\"\n}\n",
			folders: true,
			refuses: map[string]string{
				"block device": "a file system is needed", "ephemeral volume": "and is not staged",
			},
		},
		{
			name: "spiffe-csi v0.2.12", fetched: "spiffe-csi-driver", onlyEphemeral: true,
			args: []string{
				"-node-id", "${node.name}", "-csi-socket-path", "${socket}", "-workload-api-socket-dir", "${own}/share/api",
			},
			serve: folder("api/given"),
		},
		{
			name: "hcloud-csi-driver 53ead0b", fetched: "hcloud-csi-driver", size: "10GiB",
			args:     []string{"-controller", "-node"},
			serve:    hetzner,
			standIns: map[string]string{"cryptsetup": noCrypt},
			volume:   "parameters {\n  fsFormatOptions = \"-K\"\n}\n",
			refuses: map[string]string{
				"list at the driver": "the driver died of ListVolumes", "ephemeral volume": "missing device path",
			},
		},
		{
			name: "k8s-csi-s3 v0.43.7", fetched: "s3driver", folders: true,
			args:     []string{"--endpoint", "${endpoint}", "--nodeid", "${node.name}"},
			serve:    buckets,
			standIns: map[string]string{"geesefs": bucketMount},
			refuses: map[string]string{
				"block device": "is no block device", "ephemeral volume": "Staging Target path missing",
			},
			refusesLate: true,
		},
	}
}

// envPrograms names a folder with the programs of drivers that no package registry has.
const envPrograms = "PANNIER_DRIVERS"

// fetchedProgram is empty if the folder has none.
func (d driver) fetchedProgram() string {
	path := filepath.Join(os.Getenv(envPrograms), d.fetched)
	if info, err := os.Stat(path); os.Getenv(envPrograms) == "" || err != nil || info.IsDir() {
		return ""
	}
	return path
}

// built is the path of the driver's program.
func (d driver) built(t testing.TB) string {
	t.Helper()
	if d.fetched != "" {
		return d.fetchedProgram()
	}
	return d.program(t)
}

// programs are the folders of the drivers' programs, which are built first.
func programs(t testing.TB, columns []column) (folders []string) {
	t.Helper()
	for _, c := range columns {
		folders = append(folders, filepath.Dir(c.built(t)))
	}
	slices.Sort(folders)
	return slices.Compact(folders)
}
