package watcher

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/test/lib/clustertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// timeout bounds every wait; a wait ends as soon as its condition is true.
const timeout = 30 * time.Second

// world is a real ledger with a watcher, and a node and controllers that record their calls and return errors as the
// test says.
type world struct {
	*Watcher
	t      *testing.T
	ledger *clustertest.Server

	mu       sync.Mutex
	did      []string
	fail     map[string]error // by what is asked
	owned    map[claim.WorkloadRef]bool
	attaches bool
	changed  chan struct{}
	tokens   int
	gate     func()       // called before a controller's detach decides
	hanging  string       // a node or driver that does not answer
	hangs    atomic.Int32 // calls to it
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		t: t, ledger: clustertest.Start(t), fail: map[string]error{}, owned: map[claim.WorkloadRef]bool{},
		attaches: true, changed: make(chan struct{}),
	}
	w.Watcher = New(Config{
		NodeName: "a", Node: node{w}, Cluster: w.ledger.Node, Controllers: w.controllers(),
		DriversChanged: func() <-chan struct{} {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.changed
		},
		Events: events.New(100), Log: hclog.NewNullLogger(),
		GC: GC{Interval: time.Hour, Claims: time.Hour, Drivers: time.Hour, Workloads: time.Hour},
	})
	return w
}

// lead runs the watcher until the test ends, or stop is called.
func (w *world) lead() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { w.Run(ctx) })
	stop = sync.OnceFunc(func() { cancel(); run.Wait() })
	w.t.Cleanup(stop)
	return stop
}

func (w *world) note(format string, args ...any) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	what := fmt.Sprintf(format, args...)
	w.did = append(w.did, what)
	return w.fail[what]
}

func (w *world) failing(what string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail[what] = err
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *world) log() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.did)
}

type node struct{ *world }

func (n node) Owns(ref claim.WorkloadRef) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.owned[ref]
}

func (n node) DetachUnknown(_ context.Context, c claim.Claim, _ claim.Volume) error {
	if got := n.claim(c.Volume, c.Workload).State; got != claim.Unpublishing {
		n.t.Errorf("the node is asked to unmount while the claim is %s", got)
	}
	return n.note("unmount %s of %s", c.Volume, c.Workload)
}

func (n node) Detach(_ context.Context, c claim.Claim, _ claim.Volume) (string, error) {
	return "stopped it", n.note("stop %s", c.Workload)
}

type controllers struct{ *world }

func (w *world) controllers() Controllers { return controllers{w} }

func (c controllers) Detach(ctx context.Context, v claim.Volume, node, driverNode string,
	stillNeeded func(ctx context.Context) (bool, error),
) (bool, error) {
	if v.PluginID == c.hanging {
		c.hangs.Add(1)
		<-ctx.Done()
		return false, ctx.Err()
	}
	if c.gate != nil {
		c.gate()
	}
	if !slices.ContainsFunc(c.claims(v.ID),
		func(held claim.Claim) bool { return held.Node == node && held.State == claim.NodeDetached }) {
		c.t.Errorf("the controller is asked to detach while the claims are %+v", c.claims(v.ID))
	}
	needed, err := stillNeeded(ctx)
	if err != nil || needed {
		return false, err
	}
	return true, c.note("detach %s from %s as %s", v.VolumeRef, node, driverNode)
}

func ref(id string) claim.VolumeRef { return claim.VolumeRef{Namespace: "default", ID: id} }

func workloadRef(id string) claim.WorkloadRef { return claim.WorkloadRef{Namespace: "default", ID: id} }

// volume registers a volume that several workloads may use.
func (w *world) volume(id string) { w.volumeOf("d", id) }

func (w *world) volumeOf(driver, id string) {
	w.t.Helper()
	_, err := cluster.Apply(w.t.Context(), w.ledger, &command.RegisterVolume{Volume: claim.Volume{
		Definition: claim.Definition{
			VolumeRef: ref(id), PluginID: driver, ExternalID: "ext-" + id,
			Capabilities: []claim.Capability{{AccessMode: claim.MultiNodeMultiWriter, AttachmentMode: claim.FileSystem}},
		},
	}})
	if err != nil {
		w.t.Fatal(err)
	}
}

// start takes a claim on each volume for a workload on a node.
func (w *world) start(id, node string, volumes ...string) {
	w.t.Helper()
	var want []claim.Claim
	for _, v := range volumes {
		want = append(want, claim.Claim{
			Volume: ref(
				v), Mode: claim.Write, AccessMode: claim.MultiNodeMultiWriter, AttachmentMode: claim.FileSystem,
			DriverNodeID: "d-" + node,
		})
	}
	started, err := cluster.Apply(w.t.Context(), w.ledger,
		command.Start(claim.Run{Ref: workloadRef(id), Node: node}, want))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, c := range started.Claims {
		if !w.attaches {
			break
		}
		intend := &command.IntendAttach{Volume: c.Volume, Workload: c.Workload, Index: c.Index}
		if _, err := cluster.Apply(w.t.Context(), w.ledger, intend); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) stop(id string) {
	w.t.Helper()
	if _, err := cluster.Apply(w.t.Context(), w.ledger, command.End(claim.Run{Ref: workloadRef(id)})); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) claims(volume string) (out []claim.Claim) {
	w.t.Helper()
	err := w.ledger.Read(context.Background(), func(tx *state.ReadTx) (err error) {
		out, err = tx.Claims(ref(volume))
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

func (w *world) claim(v claim.VolumeRef, by claim.WorkloadRef) claim.Claim {
	for _, c := range w.claims(v.ID) {
		if c.Workload == by {
			return c
		}
	}
	return claim.Claim{}
}

func (w *world) eventually(what string, is func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(timeout); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: not within %s; it did %q", what, timeout, w.log())
		}
	}
}

func (w *world) freed(volume string) {
	w.t.Helper()
	w.eventually("volume "+volume+" is free", func() bool { return len(w.claims(volume)) == 0 })
}
