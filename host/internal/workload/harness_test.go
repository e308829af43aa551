package workload

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/consul/ports"
	"github.com/pannier/pannier/host/internal/consul/secretsdir"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	"github.com/pannier/pannier/host/internal/workload/specs"
	"github.com/pannier/pannier/host/internal/workload/step"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

func TestMain(m *testing.M) {
	if arg := os.Getenv(envChild); arg != "" {
		beChild(arg)
	}
	check.SideBySide(6) // they mostly wait for the disk
	goleak.VerifyTestMain(m)
}

// here is the name of this node.
const here = "here"

// host is a Manager with all that it needs, in one directory. A second one on the same directory is the next process
// of the host.
type host struct {
	*hooks
	*Manager
	dir     string
	ledger  *ledger
	driver  *driver
	drivers *registry
	bus     *events.Bus
	consul  *consul
	fence   *guards
}

// openHost opens what a host needs, without calling Manager.Open.
func openHost(dir string, h *hooks, wrong func(string, ...any)) (*host, error) {
	layout := mounts.Layout{Dir: filepath.Join(dir, "csi")}
	l, err := openLedger(filepath.Join(dir, "ledger"), layout, h, wrong)
	if err != nil {
		return nil, err
	}
	j, err := openJournal(filepath.Join(dir, "journal"))
	if err != nil {
		return nil, err
	}
	c, err := openConsul(filepath.Join(dir, "consul.json"), l, h, wrong)
	if err != nil {
		return nil, err
	}
	g, err := openGuards(filepath.Join(dir, "fence.json"), h)
	if err != nil {
		return nil, err
	}
	out := &host{
		fence: g, hooks: h, dir: dir, ledger: l, consul: c, drivers: newRegistry(), bus: events.New(0),
		driver: &driver{hooks: h, fence: g, base: filepath.Join(dir, "volumes"), wrong: wrong},
	}
	out.Manager = New(here, layout, j, hclog.NewNullLogger(), Deps{
		Ledger: l, Lease: g, Controller: controller{out.driver}, Drivers: out.drivers, Events: out.bus,
		Calls: drivers.Caller{
			Drivers: out.drivers,
			Storage: func(ctx context.Context, _ string, fn func(ctx context.Context, c storage.Client) error) error {
				err := fn(ctx, out.driver)
				if errors.Is(err, errRepeated) {
					err = fn(ctx, out.driver)
				}
				return err
			},
		},
		Secrets: func(context.Context, claim.Volume) (map[string]string, error) {
			return map[string]string{"user": "admin"}, nil
		},
		ReadSecret: func(ref string) (string, error) { return "the content of " + strings.TrimPrefix(ref, "file://"), nil },
		Tokens:     c, Services: c, Datacenter: "dc7",
		Ports: ports.New(ports.DefaultMin, ports.DefaultMax, 2000), SecretsDir: secretsdir.New(filepath.Join(dir, "secrets")),
	})
	soon := step.Backoff{Min: time.Millisecond, Max: 5 * time.Millisecond}
	out.limits = limits{
		ledger: timeout, stopGrace: timeout, killGrace: timeout, cutGrace: time.Millisecond,
		devices: timeout, reserve: timeout, repair: time.Hour, undo: soon, retry: soon,
	}
	out.volumes.Calls.DriverWait = timeout
	out.services.Limits = servicesteps.Limits{
		Register: timeout, Identity: timeout, ReadBack: timeout, Bootstrap: timeout, Release: timeout,
		Look: time.Hour, Retry: soon, Ready: 100 * time.Millisecond,
	}
	return out, nil
}

// openJournal retries while the previous host's lock is held: a process that another test is just starting has it
// until its exec.
func openJournal(dir string) (*journal.Journal, error) {
	for late := time.Now().Add(timeout); ; time.Sleep(time.Millisecond) {
		j, err := journal.Open(dir, hclog.NewNullLogger())
		if err == nil || !strings.Contains(err.Error(), "directory lock") || time.Now().After(late) {
			return j, err
		}
	}
}

// newHost starts a host in a directory of its own. Its test runs beside others.
func newHost(t *testing.T) *host {
	t.Helper()
	check.Parallel(t)
	h := prepareHost(t, newDir(t))
	h.open(t)
	return h
}

func newDir(t *testing.T) string {
	t.Helper()
	testbin.RequireRoot(t, "mounts of workloads")
	dir, err := filepath.EvalSymlinks(t.TempDir())
	check.NoError(t, err)
	check.NoError(t, os.MkdirAll(filepath.Join(dir, "volumes"), 0o700))
	t.Cleanup(func() { // runs last, before the directory is removed
		there, err := mounts.Below(dir)
		if err != nil {
			t.Error(err)
		}
		for n := len(there) - 1; n >= 0; n-- {
			_ = unix.Unmount(there[n].Path, unix.MNT_DETACH)
		}
	})
	return dir
}

func prepareHost(t *testing.T, dir string) *host {
	t.Helper()
	h, err := openHost(dir, &hooks{}, t.Errorf)
	check.NoError(t, err)
	t.Cleanup(func() { h.shut(t) })
	return h
}

// open calls Manager.Open, which must leave nothing over.
func (h *host) open(t *testing.T) {
	t.Helper()
	left, err := h.Open(t.Context())
	if err != nil || len(left) > 0 {
		t.Fatalf("open: %v, left over: %q", err, left)
	}
}

// shut ends the host as the end of its process would. It may be called again.
func (h *host) shut(t *testing.T) {
	t.Helper()
	if err := errors.Join(h.Close(), h.journal.Close(), h.ledger.node.Close()); err != nil {
		t.Errorf("close the host: %v", err)
	}
}

// next returns the host's next process, not opened yet.
func (h *host) next(t *testing.T) *host {
	t.Helper()
	h.shut(t)
	n := prepareHost(t, h.dir)
	n.driver.restages = true
	return n
}

// restart starts the host's next process.
func (h *host) restart(t *testing.T) *host {
	t.Helper()
	n := h.next(t)
	n.open(t)
	return n
}

func volumeRef(id string) claim.VolumeRef {
	return claim.VolumeRef{Namespace: claim.DefaultNamespace, ID: id}
}

func ref(id string) claim.WorkloadRef {
	return claim.WorkloadRef{Namespace: claim.DefaultNamespace, ID: id}
}

// volume registers a volume that many workloads of this node may write to.
func (h *host) volume(t testing.TB, driver, id string, caps ...claim.Capability) {
	t.Helper()
	if len(caps) == 0 {
		caps = []claim.Capability{{AccessMode: claim.SingleNodeMultiWriter, AttachmentMode: claim.FileSystem}}
	}
	external := "external-" + id
	check.NoError(t, h.ledger.add(claim.Volume{
		Definition: claim.Definition{
			VolumeRef: volumeRef(id), PluginID: driver, ExternalID: external, Capabilities: caps,
			Context: map[string]string{"of": external},
		},
	}))
	if caps[0].AttachmentMode == claim.FileSystem {
		check.NoError(t, os.MkdirAll(filepath.Join(h.driver.base, external), 0o700))
	}
}

// blockVolume registers a volume that is a loop device.
func (h *host) blockVolume(t *testing.T, driver, id string) {
	t.Helper()
	h.volume(t, driver, id, claim.Capability{AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.BlockDevice})
	image := filepath.Join(h.dir, id+".image")
	check.NoError(t, os.WriteFile(image, nil, 0o600))
	check.NoError(t, os.Truncate(image, 1<<20))
	out, err := exec.Command("losetup", "--find", "--show", image).Output()
	check.NoError(t, err)
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() { _ = exec.Command("losetup", "--detach", device).Run() })
	check.NoError(t, os.Symlink(device, filepath.Join(h.driver.base, "external-"+id)))
}

// spec asks for volumes by their ids.
func spec(id string, volumes ...string) Spec {
	s := Spec{WorkloadRef: ref(id)}
	for _, v := range volumes {
		s.Volumes = append(s.Volumes, specs.VolumeRequest{Name: v, Source: v, Destination: "/" + v})
	}
	return s
}

func (h *host) start(t *testing.T, s Spec) Workload {
	t.Helper()
	w, err := h.Start(t.Context(), s, Options{})
	if err != nil || w.State != Running {
		t.Fatalf("start %s: %s, %v", s.ID, w.State, err)
	}
	return w
}

func (h *host) stop(t *testing.T, id string) Workload {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	w, err := h.Stop(ctx, ref(id), "the test stops it", nil)
	if err != nil || !w.State.Ended() {
		t.Fatalf("stop %s: %s, %v, waiting for: %s", id, w.State, err, w.Waiting)
	}
	return w
}

// eventually waits until a condition on the workload is true, and returns it.
func (h *host) eventually(t *testing.T, id, what string, is func(w Workload) bool) Workload {
	t.Helper()
	late := time.After(timeout)
	for {
		i, err := h.known.find(ref(id))
		check.NoError(t, err)
		_, _, _, _, changed := i.since(0)
		w := i.snapshot()
		if is(w) {
			return w
		}
		select {
		case <-changed:
		case <-time.After(10 * time.Millisecond): // a later run of it is another instance
		case <-late:
			t.Fatalf("%s is not %s but %s: %s; waits for: %s", id, what, w.State, w.Message, w.Waiting)
		}
	}
}

func (h *host) ended(t *testing.T, id string) Workload {
	t.Helper()
	return h.eventually(t, id, "released", func(w Workload) bool { return w.State.Ended() })
}

func (h *host) running(t *testing.T, id string) Workload {
	t.Helper()
	return h.eventually(t, id, "running", func(w Workload) bool { return w.State == Running })
}

// waits until the release of the workload has failed at least once.
func (h *host) waiting(t *testing.T, id string) Workload {
	t.Helper()
	return h.eventually(t, id, "waiting", func(w Workload) bool { return w.State == Stopping && w.Waiting != "" })
}

// clean checks that nothing is left: no mount, no directory, no record, no claim.
func (h *host) clean(t *testing.T) {
	t.Helper()
	if there, err := mounts.Below(h.Layout.Dir); err != nil || len(there) > 0 {
		t.Errorf("still mounted: %v (%v)", there, err)
	}
	check.NoError(t, h.journal.View(func(tx *journal.Tx) error {
		left := func(what string) { t.Errorf("the journal still has %s", what) }
		return errors.Join(
			records.Each(tx, func(k string, _ *record) error { left("workload " + k); return nil }),
			attachments.Each(tx, func(k string, _ *users) error { left("attachment " + k); return nil }),
			stagings.Each(tx, func(k string, _ *users) error { left("staging " + k); return nil }),
		)
	}))
	if claims := h.ledger.claims(); len(claims) > 0 {
		t.Errorf("the ledger still has %+v", claims)
	}
	depth := func(path string) int { return strings.Count(path, "/") - strings.Count(h.Layout.Dir, "/") }
	err := filepath.WalkDir(h.Layout.Dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && depth(path) == 2 && d.Name() == "set-aside" {
			return filepath.SkipDir // what the test put in the way
		}
		if err == nil && depth(path) > 2 { // <driver>/staging may stay
			t.Errorf("left behind: %s", path)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(h.driver.base, "csi-*")); err != nil || len(left) > 0 {
		t.Errorf("the driver still has ephemeral volumes: %q (%v)", left, err)
	}
	if left := h.fence.guarded(); len(left) > 0 {
		t.Errorf("the fence still guards %v", left)
	}
	h.cleanOfServices(t)
	if n := h.volumes.Locks.Len(); n > 0 {
		t.Errorf("%d locks are held", n)
	}
}

// cleanOfServices checks that nothing is left of services: no token, intent, registration, file or port.
func (h *host) cleanOfServices(t *testing.T) {
	t.Helper()
	for _, left := range []any{h.consul.tokens(), h.consul.services(), h.consul.intentions(), h.ledger.tokens()} {
		if reflect.ValueOf(left).Len() > 0 {
			t.Errorf("left behind: %+v", left)
		}
	}
	entries, err := os.ReadDir(filepath.Join(h.dir, "secrets"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) || len(entries) > 1 {
		t.Errorf("secrets are left behind: %v, %v", entries, err)
	}
	if held := h.Ports.Held(); held > 0 {
		t.Errorf("%d ports are held", held)
	}
}

// usage returns the usage by spec of a volume made by volume.
func usage() mounts.Usage {
	return mounts.Usage{AttachmentMode: claim.FileSystem, AccessMode: claim.SingleNodeMultiWriter}
}

// users returns the users of an attachment or a staging mount in the journal.
type users map[string]any

const (
	attachments journal.Bucket[users] = "attachment"
	stagings    journal.Bucket[users] = "staging"
)

var multiBlock = claim.Capability{AccessMode: claim.SingleNodeMultiWriter, AttachmentMode: claim.BlockDevice}

var claimRefused = &claim.Refusal{Reason: claim.ErrHeld, Volume: volumeRef("a"), Detail: "is not given"}

// remade makes the directory that a driver has removed.
func remade(t *testing.T, path string) string {
	t.Helper()
	check.NoError(t, os.MkdirAll(path, 0o700))
	return path
}
