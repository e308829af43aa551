package drivers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
)

// way is how a driver's process is run.
type way string

const (
	asProcess   way = "process"
	inContainer way = "container"
)

// inside is where a container sees the driver's folders: bin, which is first in its PATH, state, and share, which has
// the files of remote storage.
const inside = "/mnt"

// container runs a program as docker run does with --volume CSI:/mnt/csi:rshared: in a mount namespace of its own, in
// which the host's /tmp is not seen, and whose mounts the host sees below /mnt/csi and /mnt/front only. $1 is
// data_dir/csi, $2 the directory of the driver's folders. argv[0] names the host, so that the end of the test finds the
// process.
const container = `#!/bin/bash
exec unshare --mount --propagation unchanged bash -euc '
csi=$1 own=$2 program=$3
shift 3
mount --make-private /
mount -t tmpfs none /mnt
mkdir -p "$csi/front" /mnt/csi /mnt/front /mnt/bin /mnt/share /mnt/state
mount --rbind "$csi/real" /mnt/csi # a peer of the shared mount that it is made from
mount --rbind "$csi/front" /mnt/front
for dir in bin share state; do
	mount --rbind --make-rprivate "$own/$dir" "/mnt/$dir"
done
mount --make-rprivate /tmp
umount -l /tmp
export CSI_ENDPOINT=unix:///mnt/csi/csi.sock
cd /
exec -a "$csi/$program" "/mnt/bin/$program" "$@"' bash "$@"
`

// block is the driver's csi_driver block, with the id real. dir gets the driver's folders; program in it is what a test
// can take away.
func (d driver) block(t testing.TB, w way, dir string, env map[string]string) (block, program string) {
	t.Helper()
	built := d.built(t)
	for _, folder := range []string{"bin", "share", "state"} {
		check.NoError(t, os.MkdirAll(filepath.Join(dir, folder), 0o755))
	}
	for name, script := range d.standIns {
		check.NoError(t, os.WriteFile(filepath.Join(dir, "bin", name), []byte(script), 0o755))
	}
	program = filepath.Join(dir, "bin", filepath.Base(built))
	check.NoError(t, os.WriteFile(program, check.Must(os.ReadFile(built))(t), 0o755))
	command, more := []string{program}, ""
	place := strings.NewReplacer("${own}", dir, "${socket}", "${data_dir}/csi/"+behind+"/csi.sock")
	if w == inContainer {
		outside := filepath.Join(dir, "container")
		check.NoError(t, os.WriteFile(outside, []byte(container), 0o755))
		command, program = []string{outside, "${data_dir}/csi", dir, filepath.Base(built)}, outside
		place = strings.NewReplacer("${own}", inside, "${endpoint}", "unix://"+inside+"/csi/csi.sock",
			"${socket}", inside+"/csi/csi.sock")
		more = w.paths("csi")
	}
	command = append(command, d.args...)
	for i := range command {
		command[i] = fmt.Sprintf("%q", place.Replace(command[i]))
	}
	more += fmt.Sprintf("  env = {\n    PATH = %q\n", place.Replace("${own}/bin:"+os.Getenv("PATH")))
	for name, value := range env {
		more += fmt.Sprintf("    %s = %q\n", name, place.Replace(value))
	}
	return fmt.Sprintf("csi_driver %q {\n  command = [%s]\n  ephemeral_volumes {}\n%s  }\n}\n", behind,
		strings.Join(command, ", "), more), program
}

// front is the block of the driver that passes calls on to the real one.
func (w way) front(endpoint string) string {
	return fmt.Sprintf("csi_driver %q {\n  endpoint = %q\n%s}\n", front, endpoint, w.paths("front"))
}

// paths says where the driver sees a directory below data_dir/csi.
func (w way) paths(folder string) string {
	if w != inContainer {
		return ""
	}
	return fmt.Sprintf("  mount_dir = %q\n  stage_publish_base_dir = %[1]q\n", inside+"/"+folder)
}
