package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/faultydriver"
	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/lib/testprometheus"
)

// Each alert about a host fires in a real Prometheus when its cause is there. Those about a cluster do so in
// TestClusterAlerts.
func TestAlerts(t *testing.T) {
	t.Parallel()
	f := faultydriver.Start(t, faultydriver.Config{Mounts: true, NodeID: "faulty-a"})
	h := testhost.New(t, testhost.LocalDriver(t)+`
csi_driver "faulty" {
  endpoint    = "`+f.Endpoint()+`"
  settle_time = "1s"
}
audit {
  path = "audit/log"
}
consul {
  address = "http://127.0.0.1:9"
}
`, "sids", "consul-services")
	disk := h.NewDisk(t, 512<<20)
	h.Start()
	s, err := h.Status()
	check.NoError(t, err)
	p := testprometheus.Start(t, testprometheus.Here, "http", s.GetHttpAddress())
	fires := func(name string, words ...string) {
		t.Helper()
		says := p.Await(h.Eventually, name)[0]
		for _, word := range words {
			if !strings.Contains(says, word) {
				t.Errorf("%s says %q, without %q", name, says, word)
			}
		}
	}
	fires("PannierConsulOutOfSync", "default") // nobody listens on the port discard
	p.Quiet(h.Eventually, slices.DeleteFunc(testprometheus.Names(t),
		func(name string) bool { return name == "PannierConsulOutOfSync" })...)

	volume(h, drivers[0], "data", "single-node-writer", "")
	volume(h, drivers[0], "files", "single-node-writer", "")
	h.Run("workload", "start", workload(h, "w", "data", ""))
	h.Run("workload", "start", workload(h, "x", "files", ""))
	inVolume(t, h, "fallocate -l $(($(df --output=avail -B1 . | tail -1) - 65536)) full", "data")
	inVolume(t, h, "seq $(df --output=iavail . | tail -1) | head -n -10 | xargs touch", "files")
	c := h.Client()
	must(t, register(t.Context(), c, f, "stuck", "single-node-writer"))
	must(t, start(t.Context(), c, "y", "stuck"))
	f.Always("NodeUnpublishVolume", faultydriver.Code(codes.Internal, "no"))
	stopped := make(chan error, 1)
	go func() { stopped <- stop(t.Context(), c, "y") }()
	fires("PannierReleaseWaits", "1 workload")
	fires("PannierReleaseStalled", "without a step")
	f.Always("NodeUnpublishVolume", faultydriver.OK())
	must(t, stop(t.Context(), c, "y")) // it need not wait for the next try
	must(t, <-stopped)
	f.Stop()
	fires("PannierDriverUnhealthy", "faulty")
	f.Restart()

	bad := []byte("#!/bin/sh\nexit 1\n")
	must(t, testhost.WriteProgram(filepath.Join(h.PluginDir, "other"), bad))
	fires("PannierPluginDown", "other")
	must(t, testhost.WriteProgram(filepath.Join(h.PluginDir, "csi-bridge.new"), bad))
	must(t, os.Rename(filepath.Join(h.PluginDir, "csi-bridge.new"), filepath.Join(h.PluginDir, "csi-bridge")))
	fires("PannierPluginRolledBack", "csi-bridge")

	check.NoError(t, errors.Join(os.RemoveAll(h.Path("audit")), os.WriteFile(h.Path("audit"), nil, 0o600)))
	h.Run("volume", "status", "data")
	fires("PannierAuditFails")

	fires("PannierVolumeFull", "default/data")
	fires("PannierVolumeOutOfInodes", "default/files")
	id := externalID(t, h, "data")
	image := filepath.Join(h.Path("data"), "volumes", "volumes", id, id+".img")
	check.NoError(t, os.Rename(image, image+".kept"))
	fires("PannierVolumeAbnormal", "1 volume")
	check.NoError(t, os.Rename(image+".kept", image))
	// TestClusterAlerts has these.
	if lacks := p.Lacks(); !slices.Equal(lacks, []string{
		"pannier_certificate_expiry_timestamp_seconds", "pannier_lease_seconds",
	}) {
		t.Errorf("no metrics %q", lacks)
	}

	for _, w := range []string{"w", "x"} {
		h.Run("workload", "stop", w)
	}
	thaw := disk.Freeze()
	waits := make(chan testhost.Result, 1)
	go func() { waits <- h.Try("node", "eligibility", "-disable", h.Name) }()
	fires("PannierDiskHangs", "not finished a write")
	thaw()
	if r := <-waits; r.Code != 0 {
		t.Error(r.Stderr)
	}
	disk.Leave(40 << 20)
	fires("PannierDataDirectoryFull", "free")
	disk.Leave(1 << 40)
	h.Kill()
	fires("PannierAgentDown", s.GetHttpAddress())
	h.Begin()
}

// inVolume runs a script in a volume of a running workload.
func inVolume(t *testing.T, h *testhost.Host, script, volume string) {
	t.Helper()
	for _, at := range h.VolumeMounts() {
		if strings.Contains(at, "/"+volume+"/") {
			cmd := h.InNamespace("sh", "-c", `cd "$1" && `+script, "sh", at)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v: %s", script, err, out)
			}
			return
		}
	}
	t.Fatalf("%s is not mounted: %q", volume, h.VolumeMounts())
}
