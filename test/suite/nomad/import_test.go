package nomad

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/hostpath"
	"github.com/pannier/pannier/test/lib/testhost"
)

// TestImport takes volumes over from another agent, whose front door is a server of Nomad's API, and from answers that
// are written as Nomad's documentation has them.
func TestImport(t *testing.T) {
	t.Parallel()
	storage := t.TempDir()
	driver := fmt.Sprintf(`
csi_driver "hostpath" {
  endpoint = %q
}
`, hostpath.Start(t, storage, "-nodeid", "shared"))
	from := startWith(t, driver)
	to := testhost.NewNamed(t, "b", driver)
	to.Start()
	address := "-nomad-address=unix://" + from.door()

	free := from.create(t, definition("free", func(v *api.CSIVolume) {
		v.MountOptions = &api.CSIMountOptions{FSType: "ext4"}
		v.Parameters = map[string]string{"note": "kept"}
	}))
	from.create(t, definition("other", func(v *api.CSIVolume) { v.Namespace = "shop" }))
	from.create(t, definition("secret", func(v *api.CSIVolume) { v.Secrets = api.CSISecrets{"password": "hunter2"} }))
	from.create(t, definition("flags", func(v *api.CSIVolume) {
		v.MountOptions = &api.CSIMountOptions{MountFlags: []string{"noatime"}}
	}))
	from.create(t, definition("used"))
	from.claim(t, "db", "used")

	says := func(out string, lines ...string) {
		t.Helper()
		for _, line := range lines {
			if !strings.Contains(out, line) {
				t.Errorf("it does not say %q:\n%s", line, out)
			}
		}
	}
	incomplete := []string{
		"default/secret: needs completion: Nomad does not show its secrets (password)",
		"default/flags: needs completion: Nomad does not show its mount flags",
	}
	inUse := "default/used: is in use: claimed by 1 allocation of Nomad (job db)"
	dry := to.Try("import", "nomad", address, "-dry-run", "-write", to.Path("specs"))
	says(dry.Stdout, append(incomplete, inUse, "default/free: would be registered", "shop/other: would be registered")...)
	if n := len(volumesOf(t, to)); dry.Code != 1 || n != 0 {
		t.Errorf("the dry run ended with %d, and %d volumes are registered", dry.Code, n)
	}
	if _, err := os.Stat(to.Path("specs")); err == nil {
		t.Error("the dry run has written specs")
	}

	first := to.Try("import", "nomad", address, "-write", to.Path("specs"))
	says(first.Stdout, append(incomplete, inUse, "default/free: registered", "shop/other: registered")...)
	if first.Code != 1 || !strings.Contains(first.Stderr, "3 of Nomad's 5 volumes are not registered") {
		t.Errorf("it ended with %d: %s", first.Code, first.Stderr)
	}
	got := (&rig{Host: to}).volume(t, "default", "free")
	if spec := got.GetSpec(); spec.GetExternalId() != free.ExternalID || spec.GetParameters()["note"] != "kept" ||
		spec.GetMountOptions().GetFsType() != "ext4" || spec.GetCapacityMin() != 1<<20 || len(spec.GetCapabilities()) != 1 {
		t.Errorf("the volume is %v", spec)
	}

	// What is written is refused until it is complete.
	written := to.Path("specs/default-secret.json")
	to.Refused(2, []string{"secrets_from", "/fill/in"}, "volume", "register", written)
	check.NoError(t, os.WriteFile(written, []byte(strings.Replace(read(t, written), "/fill/in/the/path/of/password",
		to.Write("password", "hunter2"), 1)), 0o600))
	to.Run("volume", "register", written)
	if out := to.Try("volume", "register", to.Path("specs/default-flags.json")); out.Code == 0 ||
		!strings.Contains(out.Stderr, "REDACTED") {
		t.Errorf("with a flag that is not filled in it is registered: %d: %s", out.Code, out.Stderr)
	}

	again := to.Try("import", "nomad", address, "-force")
	says(again.Stdout, "default/free: is registered already", "default/secret: is registered already",
		"default/used: registered")
	to.Run("volume", "deregister", "-namespace", "shop", "other")
	only := to.Try("import", "nomad", address, "-namespace", "shop")
	if only.Code != 0 || strings.TrimSpace(only.Stdout) != "shop/other: registered" {
		t.Errorf("of one namespace: %d: %s%s", only.Code, only.Stdout, only.Stderr)
	}
	to.Run("volume", "deregister", "free")
	from.Run("volume", "deregister", "other", "-namespace", "shop")

	// A token that may not is refused, and nothing else answers as Nomad does.
	for status, text := range map[int]string{403: "csi-read-volume", 500: "Nomad answers 500", 200: "is not Nomad's"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "Permission denied", status)
		}))
		to.Refused(1, []string{text}, "import", "nomad", "-nomad-address", server.URL)
		server.Close()
	}
	to.Refused(1, []string{"neither http"}, "import", "nomad", "-nomad-address", "nomad:4646")

	// Nomad's own answers, in two pages.
	asked := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.Header.Get("X-Nomad-Token")
		name := strings.ReplaceAll(strings.Trim(r.URL.Path, "/"), "/", "_")
		if r.URL.Path == "/v1/volumes" && r.URL.Query().Get("next_token") == "" {
			w.Header().Set("X-Nomad-NextToken", "two")
		} else if r.URL.Path == "/v1/volumes" {
			name += "_two"
		}
		text, err := os.ReadFile(filepath.Join("testdata", name+".json"))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(strings.ReplaceAll(string(text), "EXTERNAL", free.ExternalID)))
	}))
	defer server.Close()
	recorded := to.Try("import", "nomad", "-nomad-address", server.URL, "-nomad-token-file", to.Write("token", "s3cret\n"))
	says(recorded.Stdout, "default/one: registered", "default/two: needs completion: Nomad does not show its secrets (password)")
	if asked != "s3cret" || strings.Contains(recorded.Stdout+recorded.Stderr, "s3cret") {
		t.Errorf("the token was %q, and it printed %s%s", asked, recorded.Stdout, recorded.Stderr)
	}
	if spec := (&rig{Host: to}).volume(t, "default", "one").GetSpec(); len(spec.GetCapabilities()) != 2 ||
		spec.GetName() != "volume one" {
		t.Errorf("the recorded volume is %v", spec)
	}
}

// volumesOf lists the volumes of a host.
func volumesOf(t *testing.T, h *testhost.Host) []string {
	t.Helper()
	out := strings.TrimSpace(h.Run("volume", "list", "-namespace", "*", "-o", "json"))
	var ids []string
	for line := range strings.Lines(out) {
		if strings.Contains(line, `"external_id"`) {
			ids = append(ids, line)
		}
	}
	return ids
}
