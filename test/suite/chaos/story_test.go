package chaos

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

	"github.com/anishathalye/porcupine"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
)

// modes are the access modes of the volumes, two of the first.
var modes = []string{
	"single-node-writer", "single-node-writer", "multi-node-single-writer", "single-node-multi-writer",
	"multi-node-reader-only",
}

// story is one cluster and what happens to it.
type story struct {
	t     *testing.T
	c     *testcluster.Cluster
	load  *load
	keep  string // where a failed story keeps its logs
	again string // the command that runs it again
	letGo time.Duration

	owners  map[string]int // by volume: how often its node changed
	deletes int
}

// tell runs one seed: on 3 servers and 2 nodes, or on 5 servers and 2 nodes. again is the command
// that runs it again. The result says how often each volume's node changed.
func tell(t *testing.T, seed uint64, lasts time.Duration, again string) (owners map[string]int) {
	t.Helper()
	testbin.RequireRoot(t, "volumes never have two writers, whatever goes wrong")
	servers := 3
	if seed%3 == 0 {
		servers = 5
	}
	timeouts, soonest, letGo := draw(t, seed, servers)
	s := &story{
		t: t, keep: folder(t, seed), again: again, letGo: letGo,
		c: testcluster.New(t, testcluster.Options{
			Servers: servers, Nodes: 2, Seed: seed, DriverArgs: []string{"-late", "700ms", fmt.Sprintf("-attach=%t", seed%5 < 3)},
			ServerConfigOf: func(name string) string { return timeouts[name] },
		}),
	}
	t.Cleanup(s.leave)
	small := s.c.Host("node-2").NewDisk(t, smallDisk)
	for _, h := range s.c.Hosts {
		h.Begin()
	}
	for _, h := range s.c.Hosts {
		h.AwaitReady()
		h.AwaitDrivers()
	}
	t.Logf("seed %d: %d servers and 2 nodes; again: %s; timeouts: %q", seed, servers, again, timeouts)
	s.prepare()
	n := &nemesis{
		t: t, c: s.c, load: s.load, soonest: soonest, letGo: letGo, disk: small, first: slices.Clone(s.c.Hosts),
		stopped: map[*testhost.Host]bool{}, leave: s.leaveLogs,
	}
	s.happen(n, seed, plan(seed, lasts, letGo))
	s.judge()
	return s.owners
}

// folder is where a failed story keeps its logs.
func folder(t *testing.T, seed uint64) string {
	t.Helper()
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("pannier-chaos-%d-%d", seed, os.Getpid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// prepare makes the volumes and the clients' connections to the agents.
func (s *story) prepare() {
	l := &load{
		writers: &writers{all: map[*writer]bool{}, gone: map[string]time.Time{}}, began: time.Now(), letGo: s.letGo,
		slots: make(chan struct{}, mostRuns), takers: make(chan struct{}, mostTakers), live: map[*run]bool{},
		aimed: map[string]int{}, quiet: make(chan struct{}), ops: map[string][]porcupine.Operation{},
		tokens: map[string]uint64{},
	}
	s.load = l
	for _, h := range s.c.Hosts {
		client, err := api.New("unix://" + h.Socket())
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { _ = client.Close() })
		l.sites = append(l.sites, site{name: h.Name, client: client})
	}
	for n, access := range modes {
		id := fmt.Sprintf("v%d", n)
		v := &target{id: id, access: access, made: &hostv1.VolumeSpec{
			Id: id, Type: "csi", PluginId: "shared", CapacityMin: 1 << 20,
			Capabilities: []*hostv1.VolumeCapability{{AccessMode: access, AttachmentMode: "file-system"}},
		}}
		ctx, cancel := context.WithTimeout(s.t.Context(), testhost.Wait)
		made, err := l.sites[0].client.Volumes.CreateVolume(ctx, &hostv1.CreateVolumeRequest{Spec: v.made})
		cancel()
		if err != nil {
			s.t.Fatal(err)
		}
		v.spec = made.GetVolume().GetSpec()
		v.data = filepath.Join(s.c.Volumes, v.spec.GetExternalId(), "data", written)
		if err := os.WriteFile(v.data, nil, 0o600); err != nil {
			s.t.Fatal(err)
		}
		l.volumes = append(l.volumes, v)
	}
	// Each server takes a raft snapshot: without one it would always replay the whole log.
	h := s.c.Leader()
	h.Run("operator", "snapshot", "save", h.Path("saved"))
	h.Eventually("the ledger is restored", func() error { // on a busy machine the leader may change meanwhile
		if r := h.Try("operator", "snapshot", "restore", "-yes", h.Path("saved")); r.Code != 0 {
			return errors.New(r.Stderr)
		}
		return nil
	})
}

// numbers of clients, and of those that only read
const (
	users    = 8
	watchers = 2
)

// happen runs the clients while a plan is applied to the cluster.
func (s *story) happen(n *nemesis, seed uint64, steps []step) {
	ctx, cancel := context.WithCancel(s.t.Context())
	over := make(chan struct{})
	var clients sync.WaitGroup
	end := sync.OnceFunc(func() { close(over) })
	defer func() { // also when an agent does not come back
		end()
		cancel()
		clients.Wait()
		s.load.running.Wait()
	}()
	for client := range users {
		clients.Go(func() { s.load.use(ctx, over, seed, client+2) })
	}
	for client := range watchers {
		clients.Go(func() { s.load.watch(ctx, over, seed, users+client+2) })
	}
	clients.Go(func() { s.load.take(ctx, over, seed, users+watchers+2) })
	clients.Go(func() { s.load.removes(ctx, over, seed, users+watchers+3) })
	if seed%4 == 0 {
		clients.Go(func() { s.load.restore(ctx, over, seed, users+watchers+4) })
	}
	for _, step := range steps {
		s.t.Logf("%8.3f  %s", time.Since(s.load.began).Seconds(), step)
		n.do(step)
	}
	n.heal()
	s.t.Logf("%8.3f  all is well again", time.Since(s.load.began).Seconds())
	end()
	defer time.AfterFunc(testhost.Wait, cancel).Stop()
	clients.Wait()
	s.load.running.Wait()
}

// judge checks the outcome.
func (s *story) judge() {
	l := s.load
	for _, v := range l.volumes {
		for _, site := range l.sites {
			call := time.Now()
			answer, _, err := site.read(s.t.Context(), v.id)
			for limit := call.Add(testhost.Wait); err != nil && time.Now().Before(limit); {
				call = time.Now()
				answer, _, err = site.read(s.t.Context(), v.id)
			}
			if err != nil {
				s.t.Errorf("all is well, and volume %s cannot be read through %s: %v", v.id, site.name, err)
				continue
			}
			l.note(v.id, read{}, answer, call, time.Now())
			if len(answer.claims) > 0 {
				s.t.Errorf("all workloads have stopped, and volume %s is held: %v", v.id, answer.claims)
			}
		}
	}
	lost := map[string][]time.Time{}
	for _, h := range s.c.Hosts {
		lost[h.Name] = lostLeases(s.t, h)
	}
	for _, text := range append(l.wrong, disorder(l.runs, l.tokens)...) {
		s.t.Error(text)
	}
	check(s.t, l.histories(lost), s.keep)
	s.onlyOneWriter()
	s.nothingLeft()
	s.tellNumbers(lost)
}

// onlyOneWriter checks the drivers' and fences' own records for a second writer.
func (s *story) onlyOneWriter() {
	done, err := readDone(filepath.Join(s.c.Volumes, ".log"))
	if err != nil {
		s.t.Fatal(err)
	}
	fences := s.load.writers.unmounted
	for _, h := range s.c.Hosts {
		f, err := readFenced(h.Path("data/fence/fenced.json"))
		if err != nil {
			s.t.Errorf("what the fence of %s did: %v", h.Name, err)
		}
		fences = append(fences, f...)
	}
	all := publications(done, fences, s.load.vouched)
	s.owners = map[string]int{}
	for _, d := range done {
		if d.what == "delete" {
			s.deletes++
		}
	}
	for _, v := range s.load.volumes {
		s.owners[v.id] = owners(all, v.spec.GetExternalId())
		wrote, err := readWritten(v.data)
		if err != nil {
			s.t.Fatal(err)
		}
		id := v.spec.GetExternalId()
		wrong := deleted(done, all, id)
		if strings.HasPrefix(v.access, "single-node") {
			wrong = append(twice(all, id), after(wrote, all, id)...)
		}
		for _, text := range append(wrong, mixed(wrote, v.access)...) {
			s.t.Errorf("%s, %s: %s", v.id, v.access, text)
		}
	}
}

// nothingLeft waits until no volume is mounted or attached anywhere.
func (s *story) nothingLeft() {
	s.c.Hosts[0].Eventually("nothing is mounted or attached", func() error {
		for _, h := range s.c.Hosts {
			for _, m := range h.Mounts() {
				if m != h.SecretsDir() && m != h.Path("data") {
					return fmt.Errorf("%s is mounted", m)
				}
			}
		}
		left, err := filepath.Glob(filepath.Join(s.c.Volumes, "*/attached/*"))
		if len(left) > 0 {
			return fmt.Errorf("attached: %v", left)
		}
		return err
	})
}

func (s *story) tellNumbers(lost map[string][]time.Time) {
	outs, leases := map[outcome]int{}, 0
	for _, r := range s.load.runs {
		outs[r.out]++
	}
	taken := 0
	for _, at := range lost {
		leases += len(at)
	}
	for _, r := range s.load.runs {
		if r.taker && r.out == done {
			taken++
		}
	}
	s.t.Logf("%.1f s: %d workloads ran, %d of them took a volume from a node in trouble, %d starts failed, "+
		"%d claims were seen, %d detaches, %d leases were lost, %d volumes deleted, %d of %d restores succeeded; volumes changed their node %v times", time.Since(s.load.began).Seconds(), outs[done], taken,
		outs[unknown], len(s.load.tokens), len(s.load.detaches), leases, s.deletes, s.load.restored,
		s.load.restored+s.load.unrestored, s.owners)
}

// leave keeps the logs of a failed story, and removes the folder otherwise.
func (s *story) leave() {
	if !s.t.Failed() {
		if err := os.RemoveAll(s.keep); err != nil {
			s.t.Error(err)
		}
		return
	}
	s.t.Logf("logs, records and histories are in %s; again: %s", s.keep, s.again)
	for _, h := range s.c.Hosts {
		s.leaveLogs(h)
	}
	copyTo(s.t, filepath.Join(s.c.Volumes, ".log"), filepath.Join(s.keep, "drivers.log"))
	for _, v := range s.load.volumes {
		copyTo(s.t, v.data, filepath.Join(s.keep, "written-"+v.id))
	}
}

// leaveLogs keeps a host's logs, and a dump of its agent's goroutines.
func (s *story) leaveLogs(h *testhost.Host) {
	if !s.t.Failed() {
		return
	}
	if h.Alive() {
		h.Dump()
	}
	for _, name := range []string{"agent.log", "data/fence/fenced.json", "data/fence/fence.log"} {
		copyTo(s.t, h.Path(name), filepath.Join(s.keep, h.Name+"-"+filepath.Base(name)))
	}
}

func copyTo(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err == nil {
		err = os.WriteFile(to, data, 0o600)
	}
	if err != nil {
		t.Error(err)
	}
}
