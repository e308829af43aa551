package services

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
)

// intentionPolicy is that of the package's documentation for services with intentions.
const intentionPolicy = `
service_prefix "" {
  policy     = "write"
  intentions = "write"
}
node_prefix    "" { policy = "read" }
agent_prefix   "" { policy = "read" }
`

// asking is an instance of the service db on a node of the cluster c1.
func asking(node string, sources ...string) registration.Instance {
	i := instance("db", sidecar(), func(s *service.Service) { s.Intentions = sources })
	i.ID, i.Owner.Node = "pannier:"+node+":default:w:db", node
	return i
}

// set sets the intentions of an instance, or takes them back.
func (r *rig) set(t *testing.T, i registration.Instance) {
	t.Helper()
	check.NoError(t, r.SetIntentions(t.Context(), r.consul, i))
}

// entry returns the sources of the service db with their actions; empty without an entry.
func (r *rig) entry(t *testing.T) string {
	t.Helper()
	entries, _, err := r.admin.ConfigEntries().List(api.ServiceIntentions, nil)
	check.NoError(t, err)
	var all []string
	for _, e := range entries {
		for _, s := range e.(*api.ServiceIntentionsConfigEntry).Sources {
			all = append(all, fmt.Sprintf("%s:%s", s.Name, s.Action))
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func (r *rig) wantEntry(t *testing.T, want string) {
	t.Helper()
	if got := r.entry(t); got != want {
		t.Errorf("the entry has %q, want %q", got, want)
	}
}

// allowed reports whether Consul lets a service call db.
func (r *rig) allowed(t *testing.T, source string) bool {
	t.Helper()
	yes, _, err := r.admin.Connect().IntentionCheck(&api.IntentionCheck{Source: source, Destination: "db"}, nil)
	check.NoError(t, err)
	return yes
}

// others writes an entry as somebody else does.
func (r *rig) others(t *testing.T, change func(e *api.ServiceIntentionsConfigEntry)) {
	t.Helper()
	e := &api.ServiceIntentionsConfigEntry{Kind: api.ServiceIntentions, Name: "db"}
	if have, _, err := r.admin.ConfigEntries().Get(api.ServiceIntentions, "db", nil); err == nil {
		e = have.(*api.ServiceIntentionsConfigEntry)
	}
	change(e)
	if _, _, err := r.admin.ConfigEntries().Set(e, nil); err != nil {
		t.Fatal(err)
	}
}

func TestIntentions(t *testing.T) {
	t.Parallel()
	r := start(t, intentionPolicy, consul.Options{})
	a, b := asking("n1", "web", "api"), asking("n2", "web", "shop")
	none := func(i registration.Instance) registration.Instance { i.Service.Intentions = nil; return i }
	delete1 := func() {
		if _, err := r.admin.ConfigEntries().Delete(api.ServiceIntentions, "db", nil); err != nil {
			t.Fatal(err)
		}
	}

	t.Run("of several hosts", func(t *testing.T) {
		r.set(t, a)
		r.wantEntry(t, "*:deny api:allow web:allow")
		if !r.allowed(t, "web") || r.allowed(t, "shop") {
			t.Error("Consul does not decide as the entry says")
		}
		r.set(t, b)
		r.wantEntry(t, "*:deny api:allow shop:allow web:allow")
		writes := r.proxy.Count("PUT", "/v1/config")
		r.set(t, a)
		if n := r.proxy.Count("PUT", "/v1/config"); n != writes {
			t.Errorf("what is as it should be was written %d times", n-writes)
		}
		r.set(t, asking("n1", "web"))
		r.wantEntry(t, "*:deny shop:allow web:allow")
		r.set(t, none(a))
		r.wantEntry(t, "*:deny shop:allow web:allow")
		r.set(t, none(b))
		r.wantEntry(t, "")
		r.set(t, none(b)) // again
	})
	t.Run("for all", func(t *testing.T) {
		r.set(t, asking("n1", "*"))
		r.wantEntry(t, "*:allow")
		r.set(t, none(a))
		r.wantEntry(t, "")
	})
	t.Run("of others", func(t *testing.T) {
		r.others(t, func(e *api.ServiceIntentionsConfigEntry) {
			e.Sources = []*api.SourceIntention{{Name: "web", Action: api.IntentionActionDeny}}
			e.Meta = map[string]string{"external-source": "terraform"}
		})
		defer delete1()
		wantCode(t, r.SetIntentions(t.Context(), r.consul, a), codes.AlreadyExists, `entry "db"`, "not Pannier's",
			"consul config delete -kind service-intentions -name db")
		r.set(t, none(a))
		r.wantEntry(t, "web:deny")
		local := asking("n1", "web")
		r.register(t, local)
		r.settled(t, none(local))
		_, done := r.sync(t, local)
		if len(done) != 1 || !strings.Contains(done[0], "intentions-conflict") {
			t.Errorf("done: %q", done)
		}
		r.wantEntry(t, "web:deny")
	})
	t.Run("with sources of others", func(t *testing.T) {
		local := asking("n1", "web", "api")
		r.set(t, local)
		r.register(t, local)
		r.others(t, func(e *api.ServiceIntentionsConfigEntry) {
			e.Sources = append(e.Sources, &api.SourceIntention{Name: "monitor", Action: api.IntentionActionAllow})
		})
		// An emergency: PUT /v1/connect/intentions/exact.
		_, err := r.admin.Connect().IntentionUpsert(&api.Intention{
			SourceName: "web", DestinationName: "db", SourceType: api.IntentionSourceConsul, Action: api.IntentionActionDeny,
		}, nil)
		check.NoError(t, err)
		const left = "*:deny api:allow monitor:allow web:deny"
		check.Eventually(t, "a pass that reports what others have changed, and nothing else", func() bool {
			_, done := r.sync(t, local)
			return len(done) == 1 && strings.Contains(done[0], `somebody has changed the source "web"`)
		})
		r.wantEntry(t, left)
		r.set(t, b)
		r.wantEntry(t, "*:deny api:allow monitor:allow shop:allow web:deny")
		r.set(t, none(b))
		r.set(t, none(a))
		r.wantEntry(t, "monitor:allow web:deny")
		have, _, err := r.admin.ConfigEntries().Get(api.ServiceIntentions, "db", nil)
		check.NoError(t, err)
		if len(have.GetMeta()) > 0 {
			t.Errorf("what is left has the meta %v", have.GetMeta())
		}
		delete1()
	})
	t.Run("that are lost", func(t *testing.T) {
		local := asking("n1", "web")
		r.set(t, local)
		r.register(t, local)
		r.settled(t, local)
		delete1()
		_, done := r.sync(t, local)
		wantDone(t, done, "registered db: intentions")
		r.wantEntry(t, "*:deny web:allow")
		r.set(t, none(local))
	})
	t.Run("that were left", func(t *testing.T) {
		r.set(t, a) // of a workload that the host does not know any more
		r.set(t, b) // of another host
		fresh := New()
		t.Cleanup(func() { _ = fresh.Close() })
		_, changes, err := fresh.Sync(t.Context(), r.consul, registration.SyncRequest{Owner: a.Owner})
		check.NoError(t, err)
		if len(changes) != 1 || changes[0].Action != registration.Removed || !strings.Contains(changes[0].ID, "db") {
			t.Errorf("changes: %+v", changes)
		}
		r.wantEntry(t, "*:deny shop:allow web:allow")
		before := r.proxy.Count("GET", "/v1/config/service-intentions")
		other := none(a)
		_, _, err = fresh.Sync(t.Context(), r.consul, registration.SyncRequest{
			Owner: a.Owner, Instances: []registration.Instance{other},
		})
		check.NoError(t, err)
		check.NoError(t, fresh.Deregister(t.Context(), r.consul, other.Owner, other.ID))
		if n := r.proxy.Count("GET", "/v1/config/service-intentions"); n != before {
			t.Error("what was swept is listed again")
		}
		r.set(t, none(b))
	})
	t.Run("asked for during a pass", func(t *testing.T) {
		index := r.settled(t)
		asked := r.proxy.Count("GET", "/v1/internal/ui/node/server-0")
		var pass errgroup.Group
		pass.Go(func() error { // it knows nothing of the start that follows
			_, _, err := r.Sync(t.Context(), r.consul, registration.SyncRequest{Owner: owner, Index: index, Wait: time.Minute})
			return err
		})
		check.Eventually(t, "the pass waits", func() bool {
			return r.proxy.Count("GET", "/v1/internal/ui/node/server-0") > asked
		})
		local := asking("n1", "web")
		r.set(t, local)
		other := asking("n2", "web")
		other.ID += "-2"
		r.register(t, other) // it wakes the pass up
		check.NoError(t, pass.Wait())
		r.wantEntry(t, "*:deny web:allow")
		r.sync(t) // one that began later takes back what the host does not know any more
		r.wantEntry(t, "")
	})
	t.Run("many at once", func(t *testing.T) { intendsAtOnce(t, r) })
}

// intendsAtOnce lets hosts write and take back the intentions of one service at the same time. From its write until it
// takes them back, each must find its own in the entry.
func intendsAtOnce(t *testing.T, r *rig) {
	const hosts, rounds = 6, 12
	var running sync.WaitGroup
	for n := range hosts {
		own := fmt.Sprintf("web-%d", n)
		i := asking(fmt.Sprintf("host-%d", n), own)
		running.Go(func() {
			for range rounds {
				i.Service.Intentions = []string{own}
				if err := r.SetIntentions(t.Context(), r.consul, i); err != nil {
					t.Error(err)
					return
				}
				if got := r.entry(t); !strings.Contains(got, own+":allow") {
					t.Errorf("%s has written its intentions, and Consul has %q", own, got)
					return
				}
				i.Service.Intentions = nil
				if err := r.SetIntentions(t.Context(), r.consul, i); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	running.Wait()
	r.wantEntry(t, "")
}

// Where Consul allows by default, only those that are named may call.
func TestIntentionsOfAnOpenConsul(t *testing.T) {
	t.Parallel()
	c := consul.Start(t, consul.Options{})
	r := &rig{Cluster: c, Services: New(), admin: c.Client("")}
	t.Cleanup(func() { _ = r.Close() })
	r.consul = c.Service("default", "")
	if !r.allowed(t, "shop") {
		t.Fatal("it does not allow by default")
	}
	r.set(t, asking("n1", "web"))
	if !r.allowed(t, "web") || r.allowed(t, "shop") {
		t.Error("not exactly web may call")
	}
}

// TestIntentionPolicy checks the error for a token that may not write intentions.
func TestIntentionPolicy(t *testing.T) {
	t.Parallel()
	r := start(t, policy, consul.Options{})
	wantCode(t, r.SetIntentions(t.Context(), r.consul, asking("n1", "web")), codes.PermissionDenied,
		`intentions of service "db"`, `intentions = "write" in service_prefix`, r.consul.TokenFile)
	// Who has none needs no permission.
	_, _, err := r.Sync(context.Background(), r.consul, registration.SyncRequest{Owner: owner})
	check.NoError(t, err)
}

// What is packed into an entry's Meta is unpacked again, within Consul's bounds.
func TestShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?|\*`), 1, 8, rapid.ID[string])
		want := shares{}
		for range rapid.IntRange(0, 40).Draw(t, "holders") {
			h := holder(registration.Owner{Cluster: rapid.String().Draw(t, "cluster")}, rapid.String().Draw(t, "id"))
			want[h] = slices.Sorted(slices.Values(names.Draw(t, "sources")))
		}
		meta, err := want.pack(map[string]string{"k": "v", chunkKey(59): "old"})
		if err != nil {
			t.Fatal(err)
		}
		for key, value := range meta {
			if len(value) > 512 || len(meta) > 64 || meta["k"] != "v" {
				t.Fatalf("%s has %d bytes, of %d keys", key, len(value), len(meta))
			}
		}
		got, ok := unpackShares(meta)
		if ok != (len(want) > 0) || ok && !maps.EqualFunc(got, want, slices.Equal) {
			t.Fatalf("got %v, %v, want %v", got, ok, want)
		}
	})
	many := shares{}
	for n := range 2000 {
		many[holder(owner, fmt.Sprint(n))] = []string{"web"}
	}
	if _, err := many.pack(nil); err != nil {
		t.Error(err)
	}
	for n := range 1000 {
		many[holder(owner, fmt.Sprint("more", n))] = []string{"web"}
	}
	_, err := many.pack(nil)
	wantCode(t, err, codes.FailedPrecondition, "3000 workloads")
}

// What a host that is gone for good has left, services and its part of intentions, another one removes.
func TestAGoneHostsIntentions(t *testing.T) {
	t.Parallel()
	r := start(t, intentionPolicy, consul.Options{})
	gone, stays := asking("n1", "web", "report"), asking("n2", "report")
	for _, i := range []registration.Instance{gone, stays} {
		r.set(t, i)
		r.register(t, i)
	}
	sync := func(owner registration.Owner, instances ...registration.Instance) {
		t.Helper()
		req := registration.SyncRequest{Owner: owner, Instances: instances}
		if _, _, err := r.Sync(t.Context(), r.consul, req); err != nil {
			t.Fatal(err)
		}
	}
	sync(stays.Owner, stays) // its own leftovers are swept
	r.wantEntry(t, "*:deny report:allow web:allow")
	for range 2 { // it comes back, and is gone again
		r.set(t, gone)
		r.wantEntry(t, "*:deny report:allow web:allow")
		sync(gone.Owner)
		r.wantEntry(t, "*:deny report:allow")
	}
	all, err := r.admin.Agent().Services()
	check.NoError(t, err)
	if all[gone.ID] != nil || all[stays.ID] == nil {
		t.Errorf("the agent has %v", slices.Sorted(maps.Keys(all)))
	}
}
