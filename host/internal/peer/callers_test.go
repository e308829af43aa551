package peer

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/secrets"
	"github.com/pannier/pannier/host/internal/workload/onbehalf"
)

// door lets in the token "good", whose accessor is "a".
type door struct {
	mu    sync.Mutex
	asked []Start
}

func (d *door) MayStart(_ context.Context, by Asker, w Start) (string, error) {
	d.mu.Lock()
	d.asked = append(d.asked, w)
	d.mu.Unlock()
	return "a", d.open(by)
}

func (d *door) MayStop(_ context.Context, by Asker, _ claim.WorkloadRef) error { return d.open(by) }
func (d *door) MayUse(_ context.Context, by Asker, _ claim.VolumeRef) error    { return d.open(by) }

func (d *door) open(by Asker) error {
	if by.Token == "good" || by.Granted && by.Accessor == "a" {
		return nil
	}
	return denied("the door is closed")
}

func (d *door) last() Start {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.asked) == 0 {
		return Start{}
	}
	return d.asked[len(d.asked)-1]
}

// TestCallersOfANode: what gives a node something new needs a caller who may have it. What it holds it may keep, and
// have again.
func TestCallersOfANode(t *testing.T) {
	w := form(t, 1, "n1", "n2")
	d := &door{}
	leader := w.leader(t)
	sealer, err := secrets.Open(filepath.Join(t.TempDir(), "key"))
	must(t, err)
	leader.leader.Keys, leader.leader.Callers = sealer, d
	n1, n2 := w.agents["n1"], w.agents["n2"]
	client := n1.Servers
	for _, a := range []*agent{n1, n2} {
		_, err := cluster.Apply(within(t), a.Servers,
			&command.PutNode{Node: claim.Node{Name: a.name, BootID: "b", SecretHash: a.secret.Hash()}})
		must(t, err)
	}
	nobody, good := within(t), onbehalf.With(within(t), onbehalf.New("good", nil))
	refused := func(what string, err error) {
		t.Helper()
		if status.Code(err) != codes.PermissionDenied || !errors.Is(err, ErrDenied) {
			t.Errorf("%s: %v", what, err)
		}
	}

	v, other := w.volume(t, "v", "driver"), w.volume(t, "other", "driver")
	run := claim.Run{Ref: ref("w"), Node: "n1", ID: "run-1"}
	token := claim.Token{ID: "00000000-0000-4000-8000-000000000001", Service: "web", Consul: "default"}
	start := func(ctx context.Context, claims ...claim.Claim) error {
		_, err := cluster.Apply(ctx, client, command.Start(run, claims, token))
		return err
	}
	refused("a start without a caller", start(nobody, wants(v)))
	refused("a start for another caller", start(onbehalf.With(nobody, onbehalf.New("bad", nil)), wants(v)))
	look := func(ctx context.Context, v claim.Volume) error {
		_, _, err := cluster.Ask(ctx, client, &command.QueryVolume{Ref: v.VolumeRef}, cluster.Blocking{})
		return err
	}
	refused("a look at a volume", look(nobody, v))
	refused("a look at a volume that there is not", look(nobody, claim.Volume{Definition: claim.Definition{
		VolumeRef: claim.VolumeRef{
			Namespace: v.Namespace, ID: "none",
		},
	}}))
	must(t, look(good, v))
	must(t, start(good, wants(v)))
	if got := d.last(); got.Ref != run.Ref || !slices.Equal(got.Volumes, []claim.VolumeRef{v.VolumeRef}) ||
		!slices.Equal(got.Services, []string{"web"}) {
		t.Errorf("it was asked about %+v", got)
	}
	must(t, look(nobody, v))
	must(t, start(nobody, wants(v)))
	foreign := wants(v)
	foreign.Volume.Namespace = "foreign"
	refused("a volume of another namespace", start(good, foreign))

	refused("a start with more", start(nobody, wants(v), wants(other)))

	intend := func(ctx context.Context, service string) error {
		t := token
		t.ID, t.Node, t.Workload, t.Service = "00000000-0000-4000-8000-000000000002", "n1", ref("again"), service
		return NodeTokens{Servers: n1.Servers}.Intend(ctx, t)
	}
	again := claim.Run{Ref: ref("again"), Node: "n1", ID: "run-2"}
	second := token
	second.ID = "00000000-0000-4000-8000-000000000003"
	_, err = cluster.Apply(good, client, command.Start(again, nil, second))
	must(t, err)
	must(t, intend(nobody, "web")) // another token for the same service
	refused("another service", intend(nobody, "payments"))

	// Another node's workload.
	theirs := claim.Run{Ref: ref("theirs"), Node: "n2", ID: "run-3"}
	_, err = cluster.Apply(good, n2.Servers, command.Start(theirs, []claim.Claim{wants(other)}))
	must(t, err)
	if _, _, err := cluster.Ask(nobody, client,
		&command.QueryWorkload{Ref: theirs.Ref}, cluster.Blocking{}); !errors.Is(err, claim.ErrWorkloadNotFound) {
		t.Errorf("another node's workload: %v", err)
	}
	if claims, _, err := cluster.Ask(nobody, client,
		&command.QueryClaims{Workload: theirs.Ref}, cluster.Blocking{}); err != nil || len(claims) > 0 {
		t.Errorf("another node's claims: %v, %v", claims, err)
	}

	// A wait gets a statement that counts for this run only.
	waits := claim.Run{Ref: ref("waits"), Node: "n1", ID: "run-4"}
	caller := onbehalf.New("good", nil)
	_, err = cluster.Apply(nobody, client, command.Await(waits, []claim.WorkloadRef{theirs.Ref}))
	refused("a wait", err)
	_, err = cluster.Apply(onbehalf.With(nobody, caller), client, command.Await(waits, []claim.WorkloadRef{theirs.Ref}))
	must(t, err)
	found, _, err := cluster.Ask(nobody, client, &command.QueryWorkload{Ref: theirs.Ref}, cluster.Blocking{})
	if err != nil || found.Node != "n2" || found.RunID != "" {
		t.Errorf("a workload that is waited for: %+v, %v", found, err)
	}
	if claims, _, err := cluster.Ask(nobody, client,
		&command.QueryClaims{Workload: theirs.Ref}, cluster.Blocking{}); err != nil || len(claims) != 1 {
		t.Errorf("its claims: %v, %v", claims, err)
	}
	refused("a stop of it", n1.StopWorkload(nobody, "", theirs.Ref, "replaced"))
	_, grant := caller.Credentials()
	if len(grant) == 0 {
		t.Fatal("there is no statement")
	}
	later := onbehalf.With(nobody, onbehalf.New("", grant))
	for what, run := range map[string]claim.Run{
		"another workload": {Ref: ref("elsewhere"), Node: "n1", ID: waits.ID},
		"another run":      {Ref: waits.Ref, Node: "n1", ID: "run-5"},
	} {
		_, err := cluster.Apply(later, client, command.Start(run, nil))
		refused(what, err)
	}
	_, err = cluster.Apply(later, n2.Servers, command.Start(claim.Run{Ref: waits.Ref, Node: "n2", ID: waits.ID}, nil))
	refused("another node", err)
	must(t, n1.StopWorkload(later, "", theirs.Ref, "replaced"))
	_, err = cluster.Apply(later, client, command.Start(waits, nil))
	must(t, err)
}

// TestNodeWithoutAVersionIsChecked: whatever a node's record says, or does not say, the leader checks its callers.
func TestNodeWithoutAVersionIsChecked(t *testing.T) {
	w := form(t, 1, "n1")
	leader := w.leader(t)
	client := w.agents["n1"].Servers
	for n, attributes := range []map[string]string{nil, {"pannier.level": ""}, {"pannier.level": "0"}} {
		leader.leader.Callers = nil // as before ACLs were turned on
		_, err := cluster.Apply(within(t), client, &command.PutNode{Node: claim.Node{
			Name: "n1", BootID: "b", SecretHash: w.agents["n1"].secret.Hash(), Attributes: attributes,
		}})
		must(t, err)
		leader.leader.Callers = &door{}
		run := claim.Run{Ref: ref(fmt.Sprint("w", n)), Node: "n1", ID: fmt.Sprint("run-", n)}
		if _, err := cluster.Apply(within(t), client, command.Start(run, nil)); !errors.Is(err, ErrDenied) {
			t.Errorf("a node with %v starts a workload for nobody: %v", attributes, err)
		}
		volume := claim.VolumeRef{Namespace: "default", ID: "none"}
		if _, _, err := cluster.Ask(within(t), client,
			&command.QueryVolume{Ref: volume}, cluster.Blocking{}); !errors.Is(err, ErrDenied) {
			t.Errorf("a node with %v looks at a volume for nobody: %v", attributes, err)
		}
	}
}

// TestGrantIsOfOneRun: the leader's statement counts for the node and the run that it was made for.
func TestGrantIsOfOneRun(t *testing.T) {
	sealer, err := secrets.Open(filepath.Join(t.TempDir(), "key"))
	must(t, err)
	l := &Leader{Keys: sealer}
	grant := l.grant("ann", "n1", ref("w"), "run-1")
	if accessor, ok := l.granted(grant, "n1", ref("w"), "run-1"); !ok || accessor != "ann" {
		t.Errorf("its own run: %q, %t", accessor, ok)
	}
	for what, ok := range map[string]func() (string, bool){
		"another node":     func() (string, bool) { return l.granted(grant, "n2", ref("w"), "run-1") },
		"another workload": func() (string, bool) { return l.granted(grant, "n1", ref("x"), "run-1") },
		"another run":      func() (string, bool) { return l.granted(grant, "n1", ref("w"), "run-2") },
	} {
		if accessor, granted := ok(); granted || accessor != "" {
			t.Errorf("%s is granted what %q was", what, accessor)
		}
	}
}
