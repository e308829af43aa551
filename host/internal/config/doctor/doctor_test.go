package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/config/mountunits"
	"github.com/pannier/pannier/host/internal/system/mountuse"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
	lib "github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/docker"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testns"
)

func TestMain(m *testing.M) { testns.Main(m, 0) }

// is fails unless the findings are of one status each, and say so by these words.
func is(t *testing.T, found []Finding, want ...string) {
	t.Helper()
	if len(found) != len(want) {
		t.Fatalf("the findings are %+v, and should be %q", found, want)
	}
	for i, f := range found {
		if got := fmt.Sprintf("%s: %s: %s", f.Status, f.Why, f.Command); !strings.Contains(got, want[i]) {
			t.Errorf("the finding %q should have %q", got, want[i])
		}
	}
}

func TestMountUnits(t *testing.T) {
	root, generated := t.TempDir(), t.TempDir()
	is(t, checkMountUnits(root, generated), "ok: 0 mount units with volumes")
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		lib.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		lib.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	write("etc/fstab", `# a comment
UUID=1 / ext4 defaults 0 1
pannier:data /data\040here pannier _netdev,nofail 0 0
#old /old pannier defaults 0 0
pannier:logs /logs pannier ro 0 0
by-hand /mnt pannier noauto 0 0
`)
	write("etc/systemd/system/srv.mount", "[Mount]\nWhat=pannier:srv\nWhere=/srv\nType=pannier\n")
	write("usr/lib/systemd/system/tmp.mount", "[Mount]\nWhat=tmpfs\nWhere=/tmp\nType=tmpfs\n")
	early := "warn: " + root + "/etc/fstab:5: logs.mount lacks the option _netdev"
	is(t, checkMountUnits(root, generated), "warn: srv.mount (", "warn: data\\x20here.mount (", early)
	lib.NoError(t, mountunits.Generate(root, generated))
	is(t, checkMountUnits(root, generated), early)
}

func TestCertificates(t *testing.T) {
	for name, c := range map[string]struct {
		validity time.Duration
		want     []string
	}{
		"fresh":   {365 * 24 * time.Hour, nil},
		"ending":  {29 * 24 * time.Hour, []string{"warn: "}},
		"expired": {-time.Hour, []string{"fail: "}},
	} {
		t.Run(name, func(t *testing.T) {
			issued, err := pki.NewAuthority(c.validity)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "ca.pem")
			if err := os.WriteFile(file, issued.Cert, 0o600); err != nil {
				t.Fatal(err)
			}
			is(t, checkCertificate(file, nil), c.want...)
		})
	}
	is(t, checkCertificate("/nowhere", nil), "fail: ")
	p := Patient{Config: &config.Agent{}}
	is(t, p.certificates(t.Context()), "skipped: none is configured")
}

func TestPropagation(t *testing.T) {
	testbin.RequireRoot(t, "mounts that are not shared")
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	look := func() []Finding {
		mounts, err := mountuse.Read(mountuse.Self)
		if err != nil {
			t.Fatal(err)
		}
		p := Patient{Config: &config.Agent{DataDir: filepath.Join(dir, "not/made/yet")}, mounts: mounts}
		return p.propagation(t.Context())
	}
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	is(t, look(), "ok: ")
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	is(t, look(), "mount --make-rshared "+dir)
}

// A plugin's first start is no failure, unlike a start after one that failed.
func TestPlugins(t *testing.T) {
	for _, c := range []struct{ state, lastError, file, mend, want string }{
		{"running", "", "", "", "ok: 1, all serve"},
		{"running", "it was killed", "", "", "ok: 1, all serve"},
		{"running", "", "its file is gone", "", "warn: p: its file is gone: pannier plugin status p"},
		{"running", "", "/p does not exist", "mkdir /p", "warn: p: /p does not exist: mkdir /p"},
		{"starting", "", "", "", "warn: p: it is starting: pannier plugin status p"},
		{"starting", "it is not up after 10s", "", "", "fail: p: starting: it is not up after 10s: pannier plugin logs p"},
		{"backing-off", "it is not up after 10s", "", "", "fail: p: backing-off: it is not up after 10s: pannier plugin logs p"},
		{"backing-off", "/p does not exist", "", "mkdir /p", "fail: p: backing-off: /p does not exist: mkdir /p"},
		{"unhealthy", "", "", "", "fail: p: unhealthy: pannier plugin logs p"},
	} {
		p := Patient{status: &hostv1.StatusResponse{Plugins: []*hostv1.Plugin{
			{Name: "p", State: c.state, LastError: c.lastError, FileProblem: c.file, Mend: c.mend},
		}}}
		is(t, p.plugins(t.Context()), c.want)
	}
}

// A host need not have the drivers of other nodes.
func TestDrivers(t *testing.T) {
	elsewhere := &hostv1.Driver{Id: "other", Message: "it is not on this node"}
	here := &hostv1.Driver{Id: "local", Type: "monolith", Source: "config", Healthy: true}
	p := Patient{status: &hostv1.StatusResponse{Drivers: []*hostv1.Driver{elsewhere, here}}}
	is(t, p.drivers(t.Context()), "ok: 1, all healthy")
	here.Healthy, here.Message = false, "it hangs"
	is(t, p.drivers(t.Context()), "fail: local is not healthy: it hangs: pannier driver status local")
}

// A check that does not end is reported, and is not begun again before it has ended.
func TestCheckThatHangs(t *testing.T) {
	t.Parallel()
	p := Patient{Unended: &sync.Map{}}
	release := make(chan struct{})
	hangs := check{"hangs", 0, func(*Patient, context.Context) []Finding { <-release; return ok("it has ended") }}
	is(t, p.make(t.Context(), hangs), "fail: the check has not ended within "+checkPatience.String())
	later := Patient{Unended: p.Unended}
	is(t, later.make(t.Context(), hangs), "fail: the check of an earlier examination has not ended")
	close(release)
	lib.Eventually(t, "the check has ended", func() bool { _, hangs := p.Unended.Load("hangs"); return !hangs })
	is(t, later.make(t.Context(), hangs), "ok: it has ended")
}

// What the agent answered is told from what it did not, and a call without an answer from a check that hangs.
func TestAgentThatAnswers(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(_ http.ResponseWriter, r *http.Request) { // no majority: nobody answers
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	agent := httptest.NewServer(mux)
	defer agent.Close()
	p := Patient{
		Unended: &sync.Map{}, status: &hostv1.StatusResponse{Ready: true}, Config: &config.Agent{},
		Client: &api.Client{Operator: hostv1connect.NewOperatorServiceClient(agent.Client(), agent.URL)},
	}
	is(t, p.make(t.Context(), check{"quorum", 0, (*Patient).quorum}),
		"fail: the servers' health cannot be read, as without a majority of the servers: ")

	denied := Patient{statusErr: connect.NewError(connect.CodePermissionDenied, errors.New("no token"))}
	is(t, denied.lacks(answering), "skipped: needs the agent's state, which cannot be read: permission_denied: no token")
	is(t, denied.agent(t.Context()), "fail: its state cannot be read: permission_denied: no token: pannier acl token self")
	for _, err := range []error{connect.NewError(connect.CodeUnavailable, errors.New("no socket")), context.DeadlineExceeded} {
		silent := Patient{statusErr: err}
		is(t, silent.lacks(answering), "skipped: needs the agent, which does not answer")
		is(t, silent.agent(t.Context()), "journalctl -u pannier -n 20 --no-pager")
	}
}

func TestDocker(t *testing.T) {
	d := docker.Start(t, "the check of dockerd")
	t.Setenv("DOCKER_HOST", "unix://"+filepath.Join(t.TempDir(), "nobody"))
	p := Patient{}
	is(t, p.docker(t.Context()), "skipped: no dockerd listens on")
	host, _ := strings.CutPrefix(d.Env()[0], "DOCKER_HOST=")
	t.Setenv("DOCKER_HOST", host)
	found := p.docker(t.Context())
	is(t, found[:1], "warn: a restart of dockerd ends its containers: live-restore is off")
}

func TestTools(t *testing.T) {
	p := Patient{mounts: mountTable{}, Config: &config.Agent{DataDir: "/d"}}
	if _, err := exec.LookPath("mkfs.ext4"); err != nil {
		t.Skip("ext4's tools are not installed")
	}
	is(t, p.tools(t.Context()), "ok: those of ext4 are there")
	if installed("mount.cifs") {
		t.Skip("cifs's tools are installed, so none that are missing can be seen")
	}
	p.mounts = mountTable{{Mountpoint: "/d/csi/v", FSType: "cifs"}, {Mountpoint: "/elsewhere", FSType: "btrfs"}}
	is(t, p.tools(t.Context()), "fail: cifs is in use, and mount.cifs is not installed")
}
