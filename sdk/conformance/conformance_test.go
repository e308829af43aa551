package conformance_test

import (
	"context"
	"flag"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/sdk/conformance"
	"github.com/pannier/pannier/sdk/internal/programtest"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/sdk/storage"
)

var full = flag.Bool("full", false, "run the whole kit with every bad plugin")

// sideBySide is how many plugins are checked in parallel: most of the time they wait.
const sideBySide = "6"

func TestMain(m *testing.M) {
	conformance.Patience(4 * time.Second)
	// m.Run parses the command line after this, so a flag given there has priority.
	if err := flag.Set("test.parallel", sideBySide); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// check runs the kit, or one check of it, against the fixture in a mode, with a backend for each fixture.
func check(t *testing.T, mode, kind, one string) *conformance.Report {
	t.Helper()
	// Not t.TempDir, whose path may be too long for a Unix socket's address.
	dir, err := os.MkdirTemp("", "pnf-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	endpoint := "unix://" + serve(t, filepath.Join(dir, "s"))
	run := conformance.Run
	if one != "" {
		run = func(ctx context.Context, cfg conformance.Config) (*conformance.Report, error) {
			return conformance.RunOne(ctx, cfg, one)
		}
	}
	report, err := run(t.Context(), conformance.Config{
		Binary: programtest.Build(t, "testdata/plugin"),
		Args:   []string{mode, kind, state},
		Config: []byte(`{"answer":"forty-two"}`),
		Driver: storage.Driver{ID: "d", Endpoint: endpoint},
		Consul: service.Consul{Address: endpoint}, ProxyID: "web-sidecar-proxy",
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range report.Left {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(filepath.Dir(filepath.Dir(path)))
	}
	if len(report.Left) > 0 && mode != "leaves-mount" && mode != "remembers" {
		t.Errorf("left is %q", report.Left)
	}
	return report
}

// serve runs the fixture's backend, which answers every request with success.
func serve(t *testing.T, socket string) string {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close(); <-done })
	return socket
}

func requireRoot(t *testing.T, notCovered string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skipf("needs root (mounts); not covered: %s", notCovered)
	}
}

func TestGood(t *testing.T) {
	requireRoot(t, "the kit with a plugin that mounts")
	for kind, skipped := range map[string][]string{
		"storage":      nil,
		"identity":     {"stop.streams"},
		"registration": {"work.refuse", "stop.streams"},
		"bootstrap":    {"stop.streams"},
		"device":       {"stop.in-flight"},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			report := check(t, "good", kind, "")
			if report.Name != "fixture" || report.Version != "1.2.3-rc.1+build" || report.Kind != kind+".v1" {
				t.Errorf("got %s %s %s", report.Name, report.Version, report.Kind)
			}
			for _, res := range report.Results {
				switch {
				case res.Status == conformance.Failed:
					t.Errorf("%s: %s", res.ID, res.Reason)
				case (res.Status == conformance.Skipped) != slices.Contains(skipped, res.ID):
					t.Errorf("%s is %s: %s", res.ID, res.Status, res.Reason)
				}
			}
		})
	}
}

// bad says for every mode of the fixture which check fails, and part of the reason.
var bad = []struct{ mode, kind, check, says string }{
	{"exits", "storage", "start.handshake", "the disk is on fire"},
	{"prints", "storage", "start.handshake", "hello"},
	{"nameless", "storage", "info.kind", "no name"},
	{"strange-kind", "storage", "info.kind", `"storage.v9"`},
	{"no-service", "storage", "info.kind", "does not serve"},
	{"odd-version", "storage", "info.version", `"v1.2.3"`},
	{"fickle", "storage", "info.same", "fixture-again"},
	{"exits-well-by-hand", "storage", "start.by-hand", "exited with 0"},
	{"open-to-all", "storage", "start.tls", "without a certificate"},
	{"one-host", "storage", "start.reattach", "its answer was"},
	{"refuses", "storage", "config.valid", "not to its taste"},
	{"lax", "storage", "config.unknown-key", "it is accepted by Validate"},
	{"wordless", "storage", "config.unknown-key", "does not name the key"},
	{"careless", "storage", "config.no-object", "it is accepted by Validate"},
	{"forgets", "storage", "config.keeps-old", "forty-two"},
	{"unwell", "storage", "health.first", "no disk"},
	{"mute", "storage", "health.first", "no health"},
	{"hasty", "storage", "host.attended", "while a host attended it"},
	{"stays", "storage", "host.gone", "still runs"},
	{"busy", "storage", "call.together", "too busy"},
	{"internal", "storage", "call.away", "Internal"},
	{"panics", "storage", "call.empty", "panicked"},
	{"dies", "storage", "call.empty", "exit status 9"},
	{"ignores-cancel", "storage", "call.cancel", "hold up the end"},
	{"stale", "storage", "call.killed", "is locked"},
	{"alone", "storage", "call.generations", "another process has it"},
	{"broken", "storage", "work.whole", "it never works"},
	{"mounts-nothing", "storage", "work.whole", "nothing is mounted"},
	{"leaves-mount", "storage", "work.whole", "still mounted"},
	{"broken", "registration", "work.whole", "it changes what was just registered"},
	{"broken", "device", "work.whole", "vendor"},
	{"relative", "device", "work.whole", "not an absolute path"},
	{"all-rights", "device", "work.whole", "some of rwm"},
	{"once", "storage", "work.repeat", "it is done"},
	{"fickle-context", "storage", "work.repeat", "the second time"},
	{"unstable", "bootstrap", "work.repeat", "the second time"},
	{"strict", "storage", "work.order", "never staged"},
	{"lenient", "storage", "work.refuse", "a volume that does not exist: got success"},
	{"lenient", "identity", "work.refuse", "a token that does not exist: got success"},
	{"lenient", "bootstrap", "work.refuse", "token file that cannot be read: got success"},
	{"lenient", "device", "work.refuse", "a device that does not exist: got success"},
	{"remembers", "storage", "work.killed", "has not published it"},
	{"jealous", "storage", "work.generations", "another process has the volume"},
	{"exits-badly", "storage", "stop.exit", "exit status 1"},
	{"leaves-child", "storage", "stop.nothing-left", "sleep"},
	{"leaves-file", "storage", "stop.nothing-left", `"left"`},
	{"cuts", "storage", "stop.in-flight", "while a call waited"},
	{"endless", "storage", "stop.streams", "still runs"},
	{"ignores-term", "storage", "stop.signal", "still runs"},
	{"repeats", "identity", "secret.echo", "[the secret]"},
	{"repeats", "storage", "secret.echo", "[the secret]"},
	{"logs", "storage", "secret.log", "[the secret]"},
	{"tells", "storage", "secret.error", "[the secret]"},
	{"shows", "storage", "secret.process", "PASSWORD=[the secret]"},
}

// TestBad checks that each fault of a plugin fails its check, and no other. With -full all checks run with every
// bad plugin, otherwise with every fifth one; the rest run only their own check and those that it depends on.
func TestBad(t *testing.T) {
	requireRoot(t, "the kit with plugins that mount")
	tried := map[string]bool{}
	for n, tc := range bad {
		tried[tc.check] = true
		one := tc.check
		if *full || n%5 == 0 {
			one = ""
		}
		t.Run(tc.mode+"-"+tc.kind, func(t *testing.T) {
			t.Parallel()
			made := false
			for _, res := range check(t, tc.mode, tc.kind, one).Results {
				made = made || res.ID == tc.check
				switch {
				case res.ID == tc.check && (res.Status != conformance.Failed || !strings.Contains(res.Reason, tc.says)):
					t.Errorf("%s is %s: %s, want it failed with %q", res.ID, res.Status, res.Reason, tc.says)
				case res.ID != tc.check && res.Status == conformance.Failed:
					t.Errorf("%s failed too: %s", res.ID, res.Reason)
				}
			}
			if !made {
				t.Errorf("%s was not run", tc.check)
			}
		})
	}
	for _, c := range conformance.Checks() {
		if !tried[c.ID] {
			t.Errorf("no bad plugin fails %s", c.ID)
		}
	}
}
