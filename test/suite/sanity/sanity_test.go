package sanity

import (
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"

	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testns"
)

func TestMain(m *testing.M) { testns.Main(m, 0) }

// The driver of the tests of clusters passes csi-test, the conformance suite of the CSI project.
func TestSanityOfTheSharedDriver(t *testing.T) {
	testbin.RequireRoot(t, "the CSI suite against the tests' driver")
	dir := t.TempDir()
	cfg := sanity.NewTestConfig()
	cfg.Address = "unix://" + filepath.Join(dir, "s")
	cfg.TargetPath, cfg.StagingPath = filepath.Join(dir, "target"), filepath.Join(dir, "staging")
	driver := exec.Command(testbin.Build(t, "test/lib/shareddriver"),
		"-endpoint", cfg.Address, "-node-id", "a", "-dir", filepath.Join(dir, "volumes"))
	driver.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := driver.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = driver.Process.Signal(syscall.SIGTERM)
		if err := driver.Wait(); err != nil {
			t.Errorf("the driver ended with %v", err)
		}
	})
	sanity.Test(t, cfg)
}
