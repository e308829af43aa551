package systemd

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testsystemd"
)

// TestUninstall removes what was installed by hand, and its data, with the commands of docs/uninstalling.md.
func TestUninstall(t *testing.T) {
	t.Parallel()
	h := &host{testsystemd.New(t, "an agent that is uninstalled"), t}
	h.Install(testbin.Build(t, "host/cmd/pannier"), "/usr/bin/pannier")
	h.Install(testbin.Build(t, "host/cmd/pannier-agent"), "/usr/lib/pannier/pannier-agent")
	h.Install(testbin.Build(t, "plugins/csi-bridge"), "/usr/lib/pannier/plugins/csi-bridge")
	h.Install(testbin.Build(t, "drivers/csi-local"), "/usr/lib/pannier/csi-local")
	units, err := filepath.Glob(testbin.Root() + "/packaging/systemd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, unit := range units {
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		h.Write("/etc/systemd/system/"+filepath.Base(unit), string(text), 0o644)
	}
	h.helpers()
	h.Write("/etc/pannier/agent.hcl", `csi_driver "local" {
  command = ["/usr/lib/pannier/csi-local", "-endpoint", "${endpoint}", "-node-id", "${node.name}", "-data-dir", "${data_dir}/volumes"]
}
`, 0o600)
	h.Boot()
	h.Run("systemctl", "enable", "--now", "pannier")
	h.Run("sh", "-c", "pannier volume init - | pannier volume create - && mkdir /data && mount -t pannier pannier:data /data")
	h.Run("umount", "/data")

	h.Run("sh", "-ec", page(t, "uninstalling.md", "<!-- run: uninstall -->\n```sh\n"))
	h.without()
	h.gone("/etc/systemd/system/pannier.socket", "/etc/systemd/system/sockets.target.wants/pannier.socket")
	h.are("/var/lib/pannier/volumes", "/etc/pannier/agent.hcl")
	h.Run("sh", "-ec", page(t, "uninstalling.md", "<!-- run: data -->\n```sh\n"))
	h.gone("/var/lib/pannier", "/etc/pannier", "/var/log/pannier", "/run/pannier")
}
