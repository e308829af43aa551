package signing

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-version"

	"github.com/pannier/pannier/internal/trusted"
	"github.com/pannier/pannier/test/lib/check"
)

// The binary with the highest version is found, and none that an agent would refuse.
func TestFind(t *testing.T) {
	dir := t.TempDir()
	if err := trusted.Dir(dir); err != nil {
		t.Skipf("plugins cannot be in a temporary directory: %v", err)
	}
	refused := func(checksum string, policy Policy, why string) {
		t.Helper()
		if path, err := Find(dir, "sids", checksum, policy); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("found %s, %v, want %q", path, err, why)
		}
	}
	refused("", Policy{}, "it is not in the plugin directory")
	for _, name := range []string{"sids", "sids_v1.9.0", "sids_v1.10.0", "other_v2.0.0"} {
		check.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o755))
	}
	path, err := Find(dir, "sids", "", Policy{})
	if err != nil || filepath.Base(path) != "sids_v1.10.0" {
		t.Errorf("found %s, %v", path, err)
	}
	sum := check.Must(FileSum(path))(t)
	if _, err := Find(dir, "sids", "sha256:"+strings.ToUpper(sum), Policy{}); err != nil {
		t.Error(err)
	}
	refused("sha256:"+strings.Repeat("0", 64), Policy{}, "the configuration wants")
	refused("", Policy{Required: true}, "it is not signed")
	check.NoError(t, os.Chmod(path, 0o777))
	refused("", Policy{}, "chmod")
}

// A signature of one version must not let another one run, neither an older nor a newer.
func TestSignedName(t *testing.T) {
	want := version.Must(version.NewVersion("1.2.0"))
	for file, fits := range map[string]bool{
		"sids_v1.2.0": true, "sids": true, "": true, "sids_v1.1.0": false, "sids_v1.3.0": false, "other_v1.2.0": false, "other": false,
	} {
		if _, err := names([]string{file}, "sids", want); (err == nil) != fits {
			t.Errorf("%q: %v", file, err)
		}
	}
}
