package credentials

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/system/handover"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

const secret = "the secret of web"

// logged is what the server logs.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// rig is a server, and control groups for those who ask it.
type rig struct {
	path, asks, groups string
	log                *logged
}

func newRig(t *testing.T) *rig {
	t.Helper()
	testbin.RequireRoot(t, "processes of other users and in control groups of units")
	all, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup2"))
	check.NoError(t, err)
	if len(all) == 0 {
		t.Skip("needs cgroup v2; not covered: processes in control groups of units")
	}
	dir, err := os.MkdirTemp("", "pc-")
	check.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	check.NoError(t, os.Chmod(dir, 0o755)) //nolint:gosec // others connect to the socket
	r := &rig{
		path: filepath.Join(dir, "socket"), asks: filepath.Join(dir, "asks"), groups: all[0].Mountpoint, log: &logged{},
	}
	program, err := os.ReadFile(testbin.Build(t, "test/suite/systemd/internal/asks"))
	check.NoError(t, err)
	check.NoError(t, os.WriteFile(r.asks, program, 0o755)) //nolint:gosec // others run it
	s, err := Serve(context.Background(), Config{
		Path: r.path, Sockets: handover.NewSockets(nil), Log: hclog.New(&hclog.LoggerOptions{Output: r.log}),
		Find: func(unit, name string) ([]byte, claim.WorkloadRef, error) {
			if strings.HasPrefix(unit, "pannier-test-") && name == "web.si_token" {
				return []byte(secret), claim.WorkloadRef{Namespace: "default", ID: "web"}, nil
			}
			return nil, claim.WorkloadRef{}, errors.New("it may not have it")
		},
	})
	check.NoError(t, err)
	t.Cleanup(func() { check.NoError(t, s.Close()) })
	return r
}

// group makes a control group.
func (r *rig) group(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(r.groups, name)
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Skipf("no control group can be made; not covered: processes in control groups of units: %v", err)
	}
	t.Cleanup(func() {
		for late := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			err := unix.Rmdir(path) // it is busy until the kernel has seen its last process go
			if err == nil {
				return
			}
			if time.Now().After(late) {
				t.Error(err)
				return
			}
		}
	})
	return path
}

// ask asks as a process in a control group, from an address.
func (r *rig) ask(group, address string, as ...string) string {
	args := append([]string{"-ec", `echo $$ >"$0/cgroup.procs"; exec "$@"`, group}, as...)
	out, err := exec.Command("sh", append(args, r.asks, address, r.path)...).CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%v: %s", err, out)
	}
	return string(out)
}

// A credential is for root in the control group of the unit that the address names. Everybody else gets nothing, and
// the log explains why.
func TestWhoGetsACredential(t *testing.T) {
	r := newRig(t)
	unit := fmt.Sprintf("pannier-test-%d.service", os.Getpid())
	own, other := r.group(t, unit), r.group(t, "other-"+unit)
	box := r.group(t, fmt.Sprintf("box-%d.scope", os.Getpid()))
	inner := r.group(t, filepath.Base(box)+"/"+unit)
	nobody := []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}
	address := func(n int, unit, name string) string {
		return fmt.Sprintf("@%d%x/unit/%s/%s", n, os.Getpid(), unit, name)
	}

	if got := r.ask(own, address(1, unit, "web.si_token")); got != fmt.Sprintf("%d bytes: %s\n", len(secret), secret) {
		t.Errorf("the unit gets %q", got)
	}
	if got := r.ask(own, address(2, unit, "web.si_token"), nobody...); !strings.Contains(got, "permission denied") {
		t.Errorf("another user gets %q", got)
	}
	check.NoError(t, os.Chmod(r.path, 0o666)) //nolint:gosec // should somebody open it
	for name, c := range map[string]struct{ got, log string }{
		"another user":             {r.ask(own, address(3, unit, "web.si_token"), nobody...), "it is not root"},
		"root in another unit":     {r.ask(other, address(4, unit, "web.si_token")), "are not the unit's"},
		"root in a container":      {r.ask(inner, address(5, unit, "web.si_token")), "are not the unit's"},
		"root by no address":       {r.ask(own, "@"+unit), "names no unit"},
		"root by a longer address": {r.ask(own, address(6, unit, "web.si_token/x")), "names no unit"},
		"root for a strange unit":  {r.ask(own, address(7, "a b.service", "web.si_token")), "names no unit"},
	} {
		if c.got != "0 bytes: \n" || !strings.Contains(r.log.String(), c.log) {
			t.Errorf("%s gets %q; the log is %s", name, c.got, r.log)
		}
	}
	// systemd takes the empty answer for an empty credential: the unit has to fail.
	if got := r.ask(own, address(8, unit, "db.si_token")); !strings.HasPrefix(got, "1048577 bytes: \x00") ||
		strings.Trim(got[len("1048577 bytes: "):], "\x00") != "\n" {
		t.Errorf("the unit gets %.40q", got)
	}
	if said := r.log.String(); !strings.Contains(said, "unit="+unit+" credential=db.si_token") ||
		!strings.Contains(said, "it may not have it") || strings.Contains(said, secret) {
		t.Errorf("the log is %s", said)
	}
}
