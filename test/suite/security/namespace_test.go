package security_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/testhost"
)

// A team that knows the ids of another team's volumes, and the driver's ids for them, cannot do anything with
// them, and cannot find out whether they exist.
func TestAVolumeOfAnotherNamespace(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t)+`
acl {
  enabled = true
}
audit {
  path = "audit.log"
}
`)
	h.Start()
	theirs := func(name, namespace, more string) string {
		return h.Write(name, fmt.Sprintf(`
id        = "theirs"
namespace = %q
type      = "csi"
plugin_id = "local"
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}
%s
`, namespace, more))
	}
	h.Run("volume", "create", theirs("theirs.volume.hcl", "default", `capacity_min = "1MiB"`))
	external := h.Volume("theirs").GetSpec().GetExternalId()
	h.Run("acl", "policy", "apply", "team", h.Write("team.hcl", `
namespace "team" {
  policy       = "read"
  capabilities = ["submit-workload", "csi-write-volume", "csi-mount-volume"]
}
`))
	var made struct{ Secret string }
	if err := json.Unmarshal([]byte(h.Run("acl", "token", "create", "-name", "mallory", "-policy", "team", "-o", "json")),
		&made); err != nil {
		t.Fatal(err)
	}
	workload := h.Write("w.workload.hcl", `
workload "w" {
  volume "data" {
    source      = "theirs"
    destination = "/srv/data"
  }
}
`)
	for what, args := range map[string][]string{
		"reads it":              {"volume", "status", "-namespace", "default", "theirs"},
		"reads one that is not": {"volume", "status", "-namespace", "default", "none"},
		"asks who holds it":     {"volume", "explain", "-namespace", "default", "theirs"},
		"lets go of it":         {"volume", "detach", "-namespace", "default", "theirs", "a"},
		"removes it":            {"volume", "deregister", "-namespace", "default", "theirs"},
		"uses it":               {"workload", "start", workload},
		"registers it as its own": {
			"volume", "register",
			theirs("own.volume.hcl", "team", fmt.Sprintf("external_id = %q", external)),
		},
		"clones it": {
			"volume", "create",
			theirs("clone.volume.hcl", "team", fmt.Sprintf("clone_id = %q", external)),
		},
		"changes the keys": {"operator", "secrets", "rotate"},
		"saves the ledger": {"operator", "snapshot", "save", h.Path("stolen")},
	} {
		cmd := h.Command(args...)
		cmd.Env = append(cmd.Env, "PANNIER_TOKEN="+made.Secret)
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "mallory") || !strings.Contains(string(out), "is missing") {
			t.Errorf("who %s is not refused: %v\n%s", what, err, out)
		}
	}
	if v := h.Volume("theirs"); len(v.GetClaims()) > 0 {
		t.Errorf("it is claimed: %v", v.GetClaims())
	}
}
