package e2e

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/testhost"
)

func TestSecretsAreNeverShown(t *testing.T) {
	eachDriver(t, func(t *testing.T, h *testhost.Host, d driver) {
		password := h.Write("password", "from-a-file-7Yq\n")
		volume(h, d, "data", "single-node-writer", `
secrets      { username = "in-the-spec-3Kw" }
secrets_from { password = "file://`+password+`" }
`)
		h.Run("workload", "run", workload(h, "w", "data", ""), "--", "true")
		shown := h.Run("volume", "status", "data") + h.Run("volume", "status", "-o", "json", "data") +
			h.Run("events", "-recent", "1000") + h.LogTail()
		raw, err := os.ReadFile(h.Path("agent.log"))
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{"in-the-spec-3Kw", "from-a-file-7Yq"} {
			if strings.Contains(shown+string(raw), secret) {
				t.Errorf("the secret %q is shown", secret)
			}
		}
		if !strings.Contains(shown, "[REDACTED]") {
			t.Error("nothing says that there are secrets")
		}
	})
}

func externalID(t *testing.T, h *testhost.Host, id string) string {
	t.Helper()
	var v struct {
		Volume struct {
			Spec struct {
				ExternalID string `json:"external_id"`
			} `json:"spec"`
		} `json:"volume"`
	}
	out := h.Run("volume", "status", "-o", "json", id)
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatalf("read %q: %v", out, err)
	}
	if v.Volume.Spec.ExternalID == "" {
		t.Fatalf("no external id in %s", out)
	}
	return v.Volume.Spec.ExternalID
}
