package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
)

// The number of volumes to release, and of leaders meanwhile.
const (
	workloads   = 10
	perWorkload = 100 // volumes
	// changesBefore is the number of leader changes while the driver blocks all detaches, so that the whole
	// backlog exists. changesAmid is the number of changes while the backlog is processed.
	changesBefore, changesAmid = 44, 6
	// portion is the minimum number of volumes that are detached between two changes of changesAmid.
	portion = 60
)

// TestLeadersChange shuts down a node with a thousand volumes, and changes the leader repeatedly while they
// are released. No release is forgotten, and a volume that another node claims meanwhile stays claimed, even
// if calls of earlier leaders are still in flight.
func TestLeadersChange(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t, testcluster.Options{Servers: 3, Nodes: 2, ServerConfig: patient})
	dying, taker := c.Host("node-1"), c.Host("node-2")
	for _, h := range []*testhost.Host{dying, taker} {
		nodeOnly(t, h) // only the servers' drivers are controllers
	}
	for _, h := range c.Hosts {
		h.Begin()
	}
	for _, h := range c.Hosts {
		h.AwaitReady()
		h.AwaitDrivers()
	}
	names, release := fill(t, c, dying)
	l := &leaders{t: t, c: c, at: slices.Index(c.Servers(), c.Leader())}

	for range changesBefore {
		l.transfer()
		if got := len(claimsOn(t, taker, dying)); got != workloads*perWorkload {
			t.Fatalf("%d claims are there, and no driver has detached any", got)
		}
	}
	takes := taking{t: t, on: taker, names: names}
	defer takes.running.Wait()
	for i := range changesAmid {
		done := len(detached(t, c, dying))
		release()
		taker.Eventually("more volumes are detached", func() error {
			if got := len(detached(t, c, dying)); got < done+portion {
				return fmt.Errorf("%d of %d", got, done+portion)
			}
			return nil
		})
		release = c.Hold(t)
		if len(claimsOn(t, taker, dying)) == 0 {
			t.Fatalf("the backlog was gone after %d changes", i)
		}
		takes.one(detached(t, c, dying))
		if i%3 == 0 {
			l.kill()
		} else {
			l.transfer()
		}
	}
	release()
	taker.Eventually("the node's claims are gone", func() error {
		if left := len(claimsOn(t, taker, dying)); left > 0 {
			return fmt.Errorf("%d claims", left)
		}
		return nil
	})
	if got := len(detached(t, c, dying)); got != workloads*perWorkload {
		t.Errorf("%d volumes were detached", got)
	}
	if left, err := filepath.Glob(filepath.Join(c.Volumes, "*/attached", dying.Name)); len(left) > 0 || err != nil {
		t.Errorf("%d volumes are still attached: %v", len(left), err)
	}
	takes.running.Wait()
	for _, id := range takes.volumes {
		if got := taker.Holder(id); got.GetNode() != taker.Name {
			t.Errorf("volume %s was taken on %s, and is held on %s", id, taker.Name, got.GetNode())
		}
		taker.Run("workload", "stop", "takes-"+id)
	}
	taker.AwaitFree(takes.volumes...)
	onlyWhenAsked(t, c, taker)
	taker.Run("node", "purge", dying.Name) // the purge began earlier, and can finish now
}

// nodeOnly removes the controller of a host's driver, before its agent is started.
func nodeOnly(t *testing.T, h *testhost.Host) {
	t.Helper()
	config, err := os.ReadFile(h.Path("agent.hcl"))
	check.NoError(t, err)
	const block = `csi_driver "shared" {`
	h.Write("agent.hcl", strings.Replace(string(config), block, block+"\n  type = \"node\"", 1))
}

// fill creates a thousand volumes, attaches them to a node, and shuts that node down for good, so that all
// claims wait for their detach. The drivers do nothing until release is called. names are the driver's ids of
// the volumes.
func fill(t *testing.T, c *testcluster.Cluster, dying *testhost.Host) (names []string, release func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	client := dying.Client()
	names = make([]string, workloads*perWorkload)
	each(t, 16, func(n int) {
		for v := n; v < len(names); v += 16 {
			persist(testhost.Soon(t), t, "make volume "+volume(v), func(ctx context.Context) (err error) {
				names[v], err = create(ctx, client, volume(v))
				return err
			})
		}
	})
	release = c.Hold(t)
	var starts sync.WaitGroup
	defer starts.Wait()
	defer cancel()
	for w := range workloads {
		var volumes []string
		for v := range perWorkload {
			volumes = append(volumes, volume(w*perWorkload+v))
		}
		starts.Go(func() { _ = start(ctx, client, fmt.Sprint("w-", w), volumes...) }) // does not finish
	}
	server := c.Leader()
	awaitClaims(t, server, dying, "taken")
	// The volumes get attached, but not mounted.
	check.Stop(t, driverOf(t, dying))
	release()
	server.Eventually("all volumes are attached", func() error {
		attached, err := filepath.Glob(filepath.Join(c.Volumes, "*/attached", dying.Name))
		if len(attached) < workloads*perWorkload && err == nil {
			err = fmt.Errorf("%d are", len(attached))
		}
		return err
	})
	release = c.Hold(t)
	dying.Kill()
	server.AwaitNode(dying.Name, "disconnected")
	purging, stop := context.WithCancel(t.Context())
	var purge sync.WaitGroup
	purge.Go(func() { // the purge waits for the releases
		_, _ = server.Client().Nodes.PurgeNode(purging, &hostv1.PurgeNodeRequest{Name: dying.Name, Force: true})
	})
	awaitClaims(t, server, dying, "node-detached")
	stop()
	purge.Wait()
	return names, release
}

func volume(n int) string { return fmt.Sprintf("v-%d-%d", n/perWorkload, n%perWorkload) }

// each calls fn for the numbers below n in parallel.
func each(t *testing.T, n int, fn func(i int)) {
	t.Helper()
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() { fn(i) })
	}
	if running.Wait(); t.Failed() {
		t.FailNow()
	}
}

// persist retries fn, as an API client does while leaders change, until it works or ctx ends.
func persist(ctx context.Context, t *testing.T, what string, fn func(ctx context.Context) error) {
	t.Helper()
	for err := fn(ctx); err != nil; err = fn(ctx) {
		if ctx.Err() != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// create creates a volume, and returns the driver's id for it.
func create(ctx context.Context, c *api.Client, id string) (name string, err error) {
	made, err := c.Volumes.CreateVolume(ctx, &hostv1.CreateVolumeRequest{Spec: &hostv1.VolumeSpec{
		Id: id, Type: "csi", PluginId: "shared", CapacityMin: 1 << 20,
		Capabilities: []*hostv1.VolumeCapability{{AccessMode: "single-node-writer", AttachmentMode: "file-system"}},
	}})
	if err != nil {
		return "", err
	}
	return made.GetVolume().GetSpec().GetExternalId(), nil
}

// start starts a workload with volumes, and waits for the result.
func start(ctx context.Context, c *api.Client, workload string, volumes ...string) error {
	spec := &hostv1.WorkloadSpec{Id: workload}
	for _, id := range volumes {
		spec.Volumes = append(spec.Volumes, &hostv1.VolumeRequest{Name: id, Source: id, Destination: "/srv/" + id})
	}
	stream, err := c.Workloads.StartWorkload(ctx, &hostv1.StartWorkloadRequest{Spec: spec})
	if err != nil {
		return err
	}
	defer stream.Close()
	for stream.Receive() {
	}
	return stream.Err()
}

// claimsOn returns the claims of a node.
func claimsOn(t *testing.T, through, of *testhost.Host) []*hostv1.Claim {
	t.Helper()
	n, err := through.Node(of.Name)
	check.NoError(t, err)
	return n.GetClaims()
}

// awaitClaims waits until all claims of a node are in a state.
func awaitClaims(t *testing.T, through, of *testhost.Host, state string) {
	t.Helper()
	through.Eventually("all claims are "+state, func() error {
		all := claimsOn(t, through, of)
		are := len(slices.DeleteFunc(slices.Clone(all), func(c *hostv1.Claim) bool { return c.GetState() != state }))
		if are != workloads*perWorkload {
			return fmt.Errorf("%d of %d are", are, len(all))
		}
		return nil
	})
}

// driverOf returns the process id of a host's driver.
func driverOf(t *testing.T, h *testhost.Host) int {
	t.Helper()
	for _, pid := range h.Processes() {
		if exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); filepath.Base(exe) == "shareddriver" {
			return pid
		}
	}
	t.Fatalf("%s has no driver", h.Name)
	return 0
}

// taking claims released volumes on another node.
type taking struct {
	t       *testing.T
	on      *testhost.Host
	names   []string // the driver's ids of all volumes
	volumes []string // the claimed volumes
	running sync.WaitGroup
}

// one starts a workload with a detached volume, as soon as that is possible.
func (k *taking) one(detached map[string]bool) {
	n := slices.IndexFunc(k.names, func(name string) bool { return detached[name] })
	id, client, ctx := volume(n), k.on.Client(), testhost.Soon(k.t)
	k.names[n] = "" // use each volume only once
	k.volumes = append(k.volumes, id)
	k.running.Go(func() {
		persist(ctx, k.t, "take volume "+id, func(ctx context.Context) error { return start(ctx, client, "takes-"+id, id) })
	})
}

// leaders makes the servers leader in turn.
type leaders struct {
	t    *testing.T
	c    *testcluster.Cluster
	at   int            // index of the present leader
	back *testhost.Host // a killed server that is coming back
}

// transfer transfers leadership to the next server.
func (l *leaders) transfer() {
	l.t.Helper()
	l.awaitBack()
	servers := l.c.Servers()
	from, to := servers[l.at], (l.at+1)%len(servers)
	from.Eventually(servers[to].Name+" leads", func() error {
		s, err := servers[to].Status()
		if err == nil && !s.GetLeader() {
			_, err = from.Client().Operator.TransferLeadership(testhost.Soon(l.t),
				&hostv1.TransferLeadershipRequest{Name: servers[to].Name})
			err = errors.Join(errors.New("it does not lead"), err)
		}
		return err
	})
	l.at = to
}

// kill kills the leader, and waits for another one.
func (l *leaders) kill() {
	l.t.Helper()
	l.awaitBack()
	servers := l.c.Servers()
	l.back = l.c.Leader()
	l.back.Kill()
	l.at = slices.Index(servers, l.c.Leader())
	l.back.Begin()
}

// awaitBack waits until the killed server is back.
func (l *leaders) awaitBack() {
	l.t.Helper()
	if l.back != nil {
		l.back.AwaitReady()
		l.back = nil
	}
}

// detached returns the volumes that were detached from a host, by the driver's ids.
func detached(t *testing.T, c *testcluster.Cluster, from *testhost.Host) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, d := range deeds(t, c) {
		if d.what == "detach" && d.node == from.Name {
			names[d.volume] = true
		}
	}
	return names
}

// onlyWhenAsked checks that no volume was detached from a host while it was mounted there.
func onlyWhenAsked(t *testing.T, c *testcluster.Cluster, on *testhost.Host) {
	t.Helper()
	mounted := map[string]bool{}
	for _, d := range deeds(t, c) {
		switch {
		case d.node != on.Name:
		case d.what == "detach" && mounted[d.volume]:
			t.Errorf("volume %s was detached from %s while it was mounted there", d.volume, on.Name)
		case d.what != "attach":
			mounted[d.volume] = d.what == "publish"
		}
	}
}
