package noderecord

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/csi/controllers"
	"github.com/pannier/pannier/host/internal/workload"
	"github.com/pannier/pannier/test/lib/clustertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	_ workload.Ledger     = Ledger{}
	_ controllers.Cluster = &Directory{}
)

// timeout is long enough for a slow machine.
const timeout = time.Minute

// direct passes a client's calls to a server in this process, encoded as between agents.
type direct struct{ *clustertest.Server }

func (d direct) Apply(ctx context.Context, c command.Command) (any, error) {
	entry, err := command.Encode(c)
	if err != nil {
		return nil, err
	}
	there, err := command.Decode(entry)
	if err != nil {
		return nil, err
	}
	result, err := d.ApplyFor(ctx, there)
	outcome, err := command.EncodeOutcome(result, err)
	if err != nil {
		return nil, err
	}
	return command.DecodeOutcome(c, outcome)
}

func (d direct) Query(ctx context.Context, q command.Query) (any, uint64, error) {
	result, index, err := d.AnswerQuery(ctx, q)
	answer, err := command.EncodeAnswer(result, index, err)
	if err != nil {
		return nil, 0, err
	}
	return command.DecodeAnswer(q, answer)
}

// ledgers are both ways to one ledger: the server's, and that of an agent without one.
func ledgers(t *testing.T) (s *clustertest.Server, ways map[string]Ledger) {
	s = clustertest.Start(t)
	return s, map[string]Ledger{"server": {s.Node}, "client": {cluster.NewClient(direct{s})}}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func ref(id string) claim.WorkloadRef {
	return claim.WorkloadRef{Namespace: claim.DefaultNamespace, ID: id}
}

func register(t *testing.T, s *clustertest.Server, id string) claim.VolumeRef {
	t.Helper()
	v := claim.Volume{
		Definition: claim.Definition{
			VolumeRef: claim.VolumeRef{Namespace: claim.DefaultNamespace, ID: id},
			Name:      id, PluginID: "d", ExternalID: "e-" + id,
			Capabilities: []claim.Capability{{AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem}},
		},
	}
	_, err := s.RegisterVolume(t.Context(), v)
	must(t, err)
	return v.VolumeRef
}

func want(v claim.VolumeRef) claim.Claim {
	return claim.Claim{Volume: v, Mode: claim.Write, AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem}
}

func TestAWorkloadsLedger(t *testing.T) {
	s, ways := ledgers(t)
	for name, l := range ways {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			v, w := register(t, s, "v-"+name), ref("w-"+name)
			if got, err := l.Volume(ctx, v); err != nil || got.ExternalID != "e-v-"+name {
				t.Errorf("volume: %+v, %v", got, err)
			}
			if _, err := l.Volume(ctx, claim.VolumeRef{Namespace: "x", ID: "y"}); !errors.Is(err, claim.ErrVolumeNotFound) {
				t.Errorf("no volume: %v", err)
			}
			if _, err := l.Workload(ctx, w); !errors.Is(err, claim.ErrWorkloadNotFound) {
				t.Errorf("no workload: %v", err)
			}
			must(t, l.AwaitEnded(ctx, w))
			started, err := l.StartWorkload(ctx, claim.Run{Ref: w, Node: "n1"}, []claim.Claim{want(v)}, nil)
			must(t, err)
			held := started.Claims
			if started.Run == 0 || len(held) != 1 || held[0].Index == 0 || started.Volumes[0].VolumeRef != v {
				t.Fatalf("%+v", started)
			}
			var refused *claim.Refusal
			if _, err := l.StartWorkload(ctx, claim.Run{Ref: ref("other"), Node: "n1"}, []claim.Claim{want(v)},
				nil); !errors.As(err, &refused) || refused.Holders[0].Workload != w {
				t.Errorf("a held volume: %v", err)
			}
			on, claims, err := l.OnNode(ctx, "n1")
			if err != nil || len(on) != 1 || on[0].Ref != w || len(claims) != 1 {
				t.Errorf("on the node: %v, %v, %v", on, claims, err)
			}

			// A command about another claim, or another run, does nothing.
			stale, elsewhere := held[0], held[0]
			stale.Index--
			elsewhere.Node = "n2"
			must(t, l.NodeDetached(ctx, []claim.Claim{stale, elsewhere}))
			must(t, l.AwaitFreed(ctx, []claim.Claim{stale, elsewhere}))
			must(t, l.EndWorkload(ctx, claim.Run{Ref: w, Node: "n2"}))
			must(t, l.EndWorkload(ctx, claim.Run{Ref: w, Node: "n1", Index: started.Run + 1}))
			if claims, err := l.ClaimsOf(ctx, w); err != nil || len(claims) != 1 || claims[0].State != claim.Taken {
				t.Fatalf("%+v, %v", claims, err)
			}

			var waiting sync.WaitGroup
			freed := make(chan struct{})
			await := func(what string, err func() error) {
				waiting.Go(func() {
					if err := err(); err != nil {
						t.Errorf("%s: %v", what, err)
					}
					select {
					case <-freed:
					default:
						t.Errorf("%s before it was free", what)
					}
				})
			}
			await("freed", func() error { return l.AwaitFreed(ctx, held) })
			await("ended", func() error { return l.AwaitEnded(ctx, w) })
			must(t, l.EndWorkload(ctx, claim.Run{Ref: w, Node: "n1", Index: started.Run}))
			must(t, l.NodeDetached(ctx, held))
			must(t, l.NodeDetached(ctx, held))
			if claims, err := l.ClaimsOf(ctx, w); err != nil || len(claims) != 1 || claims[0].State != claim.NodeDetached {
				t.Fatalf("%+v, %v", claims, err)
			}
			close(freed)
			_, err = s.AdvanceClaims(ctx, "", command.Advance{Volume: v, Workload: w, To: claim.Freed})
			must(t, err)
			waiting.Wait()
			if on, claims, err := l.OnNode(ctx, "n1"); err != nil || len(on)+len(claims) != 0 {
				t.Errorf("left on the node: %v, %v, %v", on, claims, err)
			}
		})
	}
}

func TestWaitingEndsWithTheCaller(t *testing.T) {
	s, ways := ledgers(t)
	v := register(t, s, "v")
	for name, l := range ways {
		w := ref("w")
		started, err := l.StartWorkload(t.Context(), claim.Run{Ref: w, Node: "n1"}, []claim.Claim{want(v)}, nil)
		must(t, err)
		gone := errors.New("the caller is gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		var waiting sync.WaitGroup
		waiting.Go(func() {
			if err := l.AwaitFreed(ctx, started.Claims); !errors.Is(err, gone) {
				t.Errorf("%s: %v", name, err)
			}
		})
		waiting.Go(func() {
			if err := l.AwaitEnded(ctx, w); !errors.Is(err, gone) {
				t.Errorf("%s: %v", name, err)
			}
		})
		cancel(gone)
		waiting.Wait()
	}
}

func TestDirectory(t *testing.T) {
	s := clustertest.Start(t)
	d := &Directory{Cluster: s.Node}
	if _, err := d.Driver("d"); !errors.Is(err, claim.ErrDriverNotFound) {
		t.Error(err)
	}
	changed := d.Changed(t.Context(), "d")
	_, err := s.PutNode(t.Context(), claim.Node{Name: "n1", Drivers: map[string]claim.NodeDriver{
		"d": {
			ID: "d", Type: claim.Monolith, Healthy: true, NodeID: "dn1",
			Controller: &claim.ControllerCapabilities{AttachDetach: true},
		},
	}})
	must(t, err)
	select {
	case <-changed:
	case <-time.After(timeout):
		t.Error("the driver's change was not told")
	}
	got, err := d.Driver("d")
	if err != nil || got.Nodes["n1"].NodeID != "dn1" || !got.Nodes["n1"].Controller.AttachDetach {
		t.Errorf("%+v, %v", got, err)
	}
	if n, err := d.Node("n1"); err != nil || n.Name != "n1" {
		t.Errorf("%+v, %v", n, err)
	}
}
