package drivers

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/hostpath"
	"github.com/pannier/pannier/test/lib/testbin"
)

// driver is a column of the matrix.
type driver struct {
	name    string
	program func(t testing.TB) string
	// args are its arguments, as in a csi_driver block.
	args []string
	// refuses maps a row to the driver's own words. No capability of CSI covers these.
	refuses map[string]string
	// once maps calls that succeed only once, against the specification, to the driver's words for the second time.
	once map[string]string
	// lost maps calls that fail after the driver was killed, because it has its volumes in memory, to its words.
	lost map[string]string
}

func all() []driver {
	return []driver{
		{
			name:    "csi-local",
			program: func(t testing.TB) string { return testbin.Build(t, "drivers/csi-local") },
			args:    []string{"-endpoint", "${endpoint}", "-node-id", "${node.name}", "-data-dir", "${data_dir}/volumes"},
		},
		{
			name:    "csi-driver-host-path " + hostpath.Version,
			program: hostpath.Binary,
			args: []string{
				"-drivername", "hostpath.csi.k8s.io", "-endpoint", "${endpoint}", "-nodeid", "${node.name}",
				"-statedir", "${data_dir}/volumes", "-enable-attach",
			},
		},
		{
			name:    "csi-driver-host-path " + hostpath.FirstVersion + ", CSI 1.0",
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
	}
}

// block is the driver's csi_driver block, with the id real.
func (d driver) block(program string) string {
	words := []string{fmt.Sprintf("%q", program)}
	for _, arg := range d.args {
		words = append(words, fmt.Sprintf("%q", arg))
	}
	return fmt.Sprintf("csi_driver %q {\n  command = [%s]\n  ephemeral_volumes {}\n}\n", behind, strings.Join(words, ", "))
}
