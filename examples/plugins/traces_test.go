package plugins_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/pannier/pannier/test/lib/otlp"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// A span that a plugin records is in the trace of the host's call.
func TestDirsTraces(t *testing.T) {
	t.Parallel()
	testbin.RequireRoot(t, "a volume of the example plugin dirs")
	c := otlp.New(t, nil)
	h := testhost.New(t, fmt.Sprintf("csi_driver \"dirs\" {\n  endpoint = \"unix://%s\"\n}\n", t.TempDir()))
	h.Env = c.Env()
	install(t, h, "dirs", must(os.ReadFile(testbin.BuildDir(t, "dirs")))(t))
	must(0, os.Remove(filepath.Join(h.PluginDir, "csi-bridge")))(t) // otherwise csi-bridge would be used
	h.Start()
	h.Run("volume", "create", "dirs/volume.hcl")
	trace := c.Await(t, "pannier-agent pannier.host.v1.VolumeService/CreateVolume > "+
		"pannier-agent pannier.plugin.storage.v1.StorageService/Create > dirs make the folder")
	for _, s := range trace {
		if s.Program == "dirs" && (s.Attributes["pannier.plugin"] != "dirs" || s.Attributes["host.name"] != "a") {
			t.Errorf("the plugin's span has %v", s.Attributes)
		}
	}
}
