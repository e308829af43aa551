package conformance_test

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
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
	dir, err := os.MkdirTemp("", "k-")
	if err != nil {
		panic(err)
	}
	if err := os.Setenv("TMPDIR", dir); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			fmt.Printf("left in the temporary folder: %v, %v\n", left, err)
			code = 1
		} else if err := os.Remove(dir); err != nil {
			panic(err)
		}
		if *full {
			fmt.Printf("planted: %d, caught: %d\n", len(planted), caught.Load())
		}
		os.Exit(code)
	}))
}

// fixture returns the configuration for a run with the fixture in a mode, with a backend of its own in a directory.
func fixture(t *testing.T, mode, kind string) (dir string, cfg conformance.Config) {
	t.Helper()
	// Not t.TempDir, whose path may be too long for a Unix socket's address.
	dir, err := os.MkdirTemp("", "f-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { discard(t, dir) })
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	endpoint := "unix://" + serve(t, filepath.Join(dir, "s"), state)
	tokenFile := filepath.Join(dir, "token")
	if err := os.WriteFile(tokenFile, []byte(consulToken), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, conformance.Config{
		Binary: programtest.Build(t, "../../test/lib/testdata/kitplugin"),
		Args:   []string{mode, kind, state},
		Config: []byte(`{"answer":"forty-two"}`),
		Driver: storage.Driver{ID: "d", Endpoint: endpoint},
		Consul: service.Consul{Address: endpoint, TokenFile: tokenFile}, ProxyID: "web-sidecar-proxy",
		OwnBackend: strings.HasPrefix(mode, "own"), // a cancelled call may have made something
	}
}

// check runs the kit, or one check of it, against the fixture in a mode.
func check(t *testing.T, mode, kind, one string) *conformance.Report {
	t.Helper()
	run := conformance.Run
	if one != "" {
		run = func(ctx context.Context, cfg conformance.Config) (*conformance.Report, error) {
			return conformance.RunOne(ctx, cfg, one)
		}
	}
	dir, cfg := fixture(t, mode, kind)
	report, err := run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	left := tokensIn(t, filepath.Join(dir, "state"))
	for _, kind := range []string{"vol", "snap", "svc"} {
		left = append(left, must(filepath.Glob(filepath.Join(dir, "state", kind, "*")))(t)...)
	}
	if len(left) > 0 && (len(report.Left) == 0 || good(mode)) {
		t.Errorf("the backend has %q, and the report says %q", left, report.Left)
	}
	return report
}

// discard removes what a bad plugin has left in its directory.
func discard(t *testing.T, dir string) {
	t.Helper()
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range slices.Backward(mounts) {
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}

// consulToken is the kit's own token for the fixture's Consul.
const consulToken = "the-kits-own"

// serve runs the fixture's backend, which answers every request with success, but as Consul for tokens, which the
// fixture keeps in a directory.
func serve(t *testing.T, socket, state string) string {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		name, aboutToken := strings.CutPrefix(req.URL.Path, "/v1/acl/token/")
		if !aboutToken {
			return
		}
		token := req.Header.Get("X-Consul-Token")
		if name == "self" {
			if _, err := os.Stat(filepath.Join(state, token)); token == "" || err != nil {
				w.WriteHeader(http.StatusForbidden)
			}
			return
		}
		if token != consulToken || req.Method != http.MethodDelete {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		for _, path := range tokensIn(t, state) {
			if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), name) {
				_ = os.Remove(path)
			}
		}
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close(); <-done })
	return socket
}

// tokensIn returns the files of the fixture's tokens, which are named by their secrets.
func tokensIn(t *testing.T, state string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(state, strings.Repeat("[0-9a-f]", 64)))
	if err != nil {
		t.Error(err)
	}
	return paths
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func requireRoot(t *testing.T, notCovered string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skipf("needs root (mounts); not covered: %s", notCovered)
	}
}

// good reports whether a mode is one of a plugin without a fault.
func good(mode string) bool { return mode == "good" || mode == "own" || mode == "one-size" }

func TestGood(t *testing.T) {
	requireRoot(t, "the kit with a plugin that mounts")
	for mode, skipped := range map[string][]string{
		"good-storage":      nil,
		"one-size-storage":  nil,
		"good-identity":     {"stop.streams"},
		"own-identity":      {"stop.in-flight", "stop.streams"},
		"good-registration": {"work.refuse", "stop.streams"},
		"own-registration":  {"work.refuse", "stop.in-flight", "stop.streams"},
		"good-bootstrap":    {"stop.streams"},
		"good-device":       {"stop.in-flight"},
		"good-frontend": {
			"work.whole", "work.repeat", "work.order", "work.refuse", "work.killed", "work.generations", "stop.in-flight",
			"stop.streams",
		},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			at := strings.LastIndex(mode, "-")
			mode, kind := mode[:at], mode[at+1:]
			report := check(t, mode, kind, "")
			if report.Name != "fixture" || report.Version != "1.2.3-rc.1+build" || report.Kind != kind+".v1" {
				t.Errorf("got %s %s %s", report.Name, report.Version, report.Kind)
			}
			if len(report.Left) > 0 {
				t.Errorf("left: %q", report.Left)
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

// TestLate checks that a plugin passes whose Consul lists a new token a moment later.
func TestLate(t *testing.T) {
	requireRoot(t, "the kit with a Consul of several servers")
	t.Parallel()
	for _, res := range check(t, "late", "identity", "token.refused").Results {
		if res.Status != conformance.Passed {
			t.Errorf("%s is %s: %s", res.ID, res.Status, res.Reason)
		}
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
	{"relative", "device", "work.whole", "must be an absolute"},
	{"all-rights", "device", "work.whole", "rwm"},
	{"one-device", "device", "device.apart", "are the same"},
	{"twice", "device", "device.apart", "twice"},
	{"early", "frontend", "door.closed", "is accepted"},
	{"deaf", "frontend", "door.serves", "not accepted after"},
	{"goes-on", "frontend", "door.drains", "after Drain: a connection"},
	{"revokes-not", "identity", "token.refused", "its issuer still accepts"},
	{"revokes-all", "identity", "token.refused", "no longer accepts another"},
	{"once", "storage", "work.repeat", "it is done"},
	{"fickle-context", "storage", "work.repeat", "the second time"},
	{"unstable", "bootstrap", "work.repeat", "the second time"},
	{"strict", "storage", "work.order", "never staged"},
	{"stacks-stages", "storage", "mount.once", "2 mounts are stacked at the staging path"},
	{"loses-when-killed", "storage", "data.kept", "after the plugin was killed, and the volume was published by another"},
	{"copies-for-others", "storage", "data.shared", "changed by one workload and read by the other"},
	{"unpublishes-all", "storage", "data.shared", "after the Unpublish of the other workload"},
	{"mixes", "storage", "data.own", "is in the other too"},
	{"writes-devices", "storage", "data.block", "published read-only, and it is written to"},
	{"remakes", "storage", "volume.same", "after Create was repeated"},
	{"repeats-entries", "storage", "volume.listed", "twice"},
	{"any-token", "storage", "volume.listed", "got success, want Aborted"},
	{"one-snapshot", "storage", "snapshot.listed", "the list lacks"},
	{"careless-clone", "storage", "clone.content", "in the clone: the files were"},
	{"takes-any-snapshot", "storage", "snapshot.same", "got success, want AlreadyExists"},
	{"keeps-snapshots", "storage", "snapshot.deleted", "still listed"},
	{"empty-snapshot", "storage", "snapshot.content", "the file that was written is not there"},
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

// TestBad checks that each fault of a plugin fails its check and, with -full, no other.
func TestBad(t *testing.T) {
	requireRoot(t, "the kit with plugins that mount")
	tried := map[string]bool{}
	for _, tc := range bad {
		tried[tc.check] = true
		one := tc.check
		if *full {
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
	for _, tc := range planted {
		tried[tc.check] = true
	}
	for _, c := range conformance.Checks() {
		if !tried[c.ID] {
			t.Errorf("no bad plugin fails %s", c.ID)
		}
	}
}
