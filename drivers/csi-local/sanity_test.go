package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"

	"github.com/pannier/pannier/test/lib/check"
)

// notApplicable are the reasons for which the suite may skip a test, with an explanation. Any other skip is a
// failure.
var notApplicable = map[string]string{
	"ControllerPublishVolume not supported":             "no PUBLISH_UNPUBLISH_VOLUME: a file on this host needs no attaching",
	"ControllerUnpublishVolume not supported":           "the same",
	"Controller Publish, UnpublishVolume not supported": "the same",
	"SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not supported":  "a snapshot is where its volume is",
}

// TestSanity runs the CSI project's suite against the real driver, once with file systems and once with block
// devices. ginkgo can run only one suite in a process, so each runs in a separate process (TestSanitySuite).
func TestSanity(t *testing.T) {
	t.Parallel()
	for _, accessType := range []string{"mount", "block"} {
		t.Run(accessType, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			report := filepath.Join(r.dir, "report.json")
			cmd := exec.Command(os.Args[0], "-test.run=^TestSanitySuite$", "-test.v", "-ginkgo.json-report="+report,
				"-ginkgo.no-color")
			cmd.Env = append(os.Environ(), "SANITY_DIR="+r.dir, "SANITY_ACCESS_TYPE="+accessType)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, failures(string(out)))
			}
			checkReport(t, report)
			if strings.Contains(readFile(t, r.log.path), secretValue) {
				t.Error("a secret is in the driver's log")
			}
			r.checkNothingLeft()
			left, _ := filepath.Glob(filepath.Join(r.data, "[vs]*", "*"))
			if len(left) > 0 {
				t.Errorf("left in the store: %v", left)
			}
		})
	}
}

// TestSanitySuite is the body of TestSanity, in a separate process.
func TestSanitySuite(t *testing.T) {
	dir := os.Getenv("SANITY_DIR")
	if dir == "" {
		t.Skip("run by TestSanity")
	}
	secrets := filepath.Join(dir, "secrets.yaml")
	writeFile(t, secrets, []byte("CreateVolumeSecret:\n  key: "+secretValue+"\nNodeStageVolumeSecret:\n  key: "+
		secretValue+"\n"))
	cfg := sanity.NewTestConfig()
	cfg.Address = "unix://" + filepath.Join(dir, "csi.sock")
	cfg.TargetPath = filepath.Join(dir, "target")
	cfg.StagingPath = filepath.Join(dir, "staging")
	cfg.SecretsFile = secrets
	cfg.TestVolumeAccessType = os.Getenv("SANITY_ACCESS_TYPE")
	cfg.TestVolumeMutableParametersFile = filepath.Join(dir, "mutable.yaml")
	writeFile(t, cfg.TestVolumeMutableParametersFile, []byte("readAheadKiB: \"512\"\n"))
	cfg.TestVolumeSize = 32 * mib
	cfg.TestVolumeExpandSize = 64 * mib
	sanity.Test(t, cfg)
}

// secretValue is what TestSanity searches for in the driver's log.
const secretValue = "s3cr3t-value"

// report is the part of ginkgo's report that the test needs.
type report []struct {
	SpecReports []struct {
		LeafNodeText            string
		ContainerHierarchyTexts []string
		LeafNodeType            string
		State                   string
		Failure                 struct{ Message string }
	}
}

func checkReport(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	check.NoError(t, err)
	var suites report
	check.NoError(t, json.Unmarshal(data, &suites))
	passed := 0
	for _, spec := range suites[0].SpecReports {
		name := strings.Join(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), " ")
		switch {
		case spec.LeafNodeType != "It":
		case spec.State == "passed":
			passed++
		case spec.State == "skipped":
			if _, ok := notApplicable[spec.Failure.Message]; !ok {
				t.Errorf("skipped: %s: %q", name, spec.Failure.Message)
			}
		case spec.State == "pending": // disabled by the suite itself
			t.Logf("pending: %s", name)
		default:
			t.Errorf("%s: %s", spec.State, name)
		}
	}
	t.Logf("%d specs passed", passed)
	if passed < 70 {
		t.Errorf("only %d specs passed: did the suite run?", passed)
	}
}

// failures returns the part of the suite's output that explains failures.
func failures(out string) string {
	if at := strings.Index(out, "Summarizing"); at >= 0 {
		return out[:min(len(out), 20000)] + "\n...\n" + out[at:]
	}
	return out
}
