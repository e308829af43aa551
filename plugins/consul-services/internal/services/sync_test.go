package services

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
)

// agentHas changes a registration at the agent, as another tool would.
func (r *rig) agentHas(t *testing.T, i registration.Instance, change func(*api.AgentServiceRegistration)) {
	t.Helper()
	message, err := i.Service.ToProto() // a copy, because the maps belong to the test
	check.NoError(t, err)
	if i.Service, err = service.FromProto(message); err != nil {
		t.Fatal(err)
	}
	w := r.want(t, i)
	change(w.registration)
	check.NoError(t, r.admin.Agent().ServiceRegisterOpts(w.registration,
		api.ServiceRegisterOpts{ReplaceExistingChecks: true}))
}

// catalogHas changes a service in the catalog.
func (r *rig) catalogHas(t *testing.T, id string, change func(*api.AgentService)) {
	t.Helper()
	s := r.inCatalog(t, id)
	change(s)
	if _, err := r.admin.Catalog().Register(&api.CatalogRegistration{Node: "server-0", SkipNodeUpdate: true, Service: s},
		nil); err != nil {
		t.Fatal(err)
	}
}

// TestDriftAtAgent changes each field at the agent, and checks that one pass repairs it.
func TestDriftAtAgent(t *testing.T) {
	t.Parallel()
	r := start(t, policy, consul.Options{})
	web := instance("web", everything)
	web.Service.Connect.SidecarService.Port = "21900"
	r.register(t, web)
	index := r.settled(t, web)
	before := r.inCatalog(t, web.ID)
	side := func(f func(*api.AgentServiceRegistration)) func(*api.AgentServiceRegistration) {
		return func(s *api.AgentServiceRegistration) { f(s.Connect.SidecarService) }
	}
	for _, c := range []struct {
		reason string
		change func(*api.AgentServiceRegistration)
	}{
		{"name", func(s *api.AgentServiceRegistration) { s.Name = "other" }},
		{"port", func(s *api.AgentServiceRegistration) { s.Port = 1 }},
		{"address", func(s *api.AgentServiceRegistration) { s.Address = "127.0.0.3" }},
		{"tags", func(s *api.AgentServiceRegistration) { s.Tags = []string{"a"} }},
		{"meta", func(s *api.AgentServiceRegistration) { s.Meta = maps.Clone(s.Meta); s.Meta["k"] = "w" }},
		{"meta", func(s *api.AgentServiceRegistration) { s.Meta = nil }},
		{"weights", func(s *api.AgentServiceRegistration) { s.Weights = nil }},
		{"enable_tag_override", func(s *api.AgentServiceRegistration) { s.EnableTagOverride = true }},
		{"tagged_addresses", func(s *api.AgentServiceRegistration) { s.TaggedAddresses = nil }},
		{"connect", func(s *api.AgentServiceRegistration) { s.Connect = &api.AgentServiceConnect{Native: true} }},
		{"checks", func(s *api.AgentServiceRegistration) { s.Checks = s.Checks[1:] }},
		{"checks", func(s *api.AgentServiceRegistration) { s.Checks[0].Notes = "GET elsewhere" }},
		{"checks", func(s *api.AgentServiceRegistration) { s.Checks[1].Name = "x" }},
		{"checks", func(s *api.AgentServiceRegistration) {
			s.Checks = append(s.Checks, &api.AgentServiceCheck{CheckID: "service:" + s.ID + ":9", TTL: "1h"})
		}},
		{"port", side(func(s *api.AgentServiceRegistration) { s.Port = 21901 })},
		{"proxy", side(func(s *api.AgentServiceRegistration) { s.Proxy.Config["protocol"] = "tcp" })},
		{"proxy", side(func(s *api.AgentServiceRegistration) { s.Proxy.Config["nested"] = map[string]any{} })},
		{"proxy", side(func(s *api.AgentServiceRegistration) { delete(s.Proxy.Config, "envoy_x") })},
		{"proxy", side(func(s *api.AgentServiceRegistration) { s.Proxy.LocalServicePort = 1 })},
		{"proxy", side(func(s *api.AgentServiceRegistration) { s.Proxy.LocalServiceAddress = "127.0.0.5" })},
		{"proxy", side(func(s *api.AgentServiceRegistration) { s.Proxy.Upstreams = s.Proxy.Upstreams[1:] })},
		{"proxy", side(func(s *api.AgentServiceRegistration) { s.Proxy.Upstreams[0].DestinationName = "x" })},
		{"proxy", side(func(s *api.AgentServiceRegistration) { s.Proxy.Upstreams[0].LocalBindPort = 1 })},
		{"proxy", side(func(s *api.AgentServiceRegistration) { s.Proxy.Upstreams[0].Config = nil })},
		{"proxy", side(func(s *api.AgentServiceRegistration) { s.Proxy.Upstreams[0].MeshGateway.Mode = "none" })},
		{"proxy", side(func(s *api.AgentServiceRegistration) {
			s.Proxy.Upstreams = append(s.Proxy.Upstreams, api.Upstream{DestinationName: "more", LocalBindPort: 7})
		})},
		{"proxy", side(func(s *api.AgentServiceRegistration) { s.Proxy.Expose.Paths[0].Path = "/x" })},
		{"proxy", side(func(s *api.AgentServiceRegistration) { s.Proxy.MeshGateway.Mode = "local" })},
		{"tags", side(func(s *api.AgentServiceRegistration) { s.Tags = []string{"x"} })},
		{"meta", side(func(s *api.AgentServiceRegistration) { s.Meta = map[string]string{"x": "y"} })},
		{"checks", side(func(s *api.AgentServiceRegistration) { s.Checks = api.AgentServiceChecks{{TTL: "1h"}} })},
	} {
		r.agentHas(t, web, c.change)
		var done []string
		if index, done = r.syncFrom(t, index, web); !slices.Equal(done, []string{"registered web: " + c.reason}) {
			t.Errorf("done: %q, want it registered for its %s", done, c.reason)
		}
		r.quiet(t, web)
	}
	after := r.inCatalog(t, web.ID)
	after.ModifyIndex = before.ModifyIndex
	if after.CreateIndex = before.CreateIndex; !reflect.DeepEqual(after, before) {
		t.Errorf("in the end it is\n%+v, it was\n%+v", after, before)
	}
}

// TestDriftInCatalog changes each field in the catalog, and checks that it is repaired.
func TestDriftInCatalog(t *testing.T) {
	t.Parallel()
	r := start(t, policy, consul.Options{})
	web := instance("web", everything)
	r.register(t, web)
	r.settled(t, web)
	node := func(d api.CatalogDeregistration) {
		d.Node = "server-0"
		if _, err := r.admin.Catalog().Deregister(&d, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		reason string
		change func()
	}{
		{"tags", func() { r.catalogHas(t, web.ID, func(s *api.AgentService) { s.Tags = []string{"x"} }) }},
		{"port", func() { r.catalogHas(t, web.ID, func(s *api.AgentService) { s.Port = 1 }) }},
		{"meta", func() { r.catalogHas(t, web.ID, func(s *api.AgentService) { s.Meta = nil }) }},
		{"proxy", func() {
			r.catalogHas(t, web.ID+sidecarSuffix, func(s *api.AgentService) { s.Proxy.LocalServicePort = 1 })
		}},
		{"checks", func() { node(api.CatalogDeregistration{CheckID: "service:" + web.ID + ":2"}) }},
		{"checks", func() {
			if _, err := r.admin.Catalog().Register(&api.CatalogRegistration{
				Node: "server-0", SkipNodeUpdate: true,
				Check: &api.AgentCheck{
					Node: "server-0", CheckID: "service:" + web.ID + ":9", Name: "x", Status: "passing", ServiceID: web.ID,
				},
			}, nil); err != nil {
				t.Fatal(err)
			}
		}},
		{"missing", func() { node(api.CatalogDeregistration{ServiceID: web.ID}) }},
		{"missing", func() { node(api.CatalogDeregistration{ServiceID: web.ID + sidecarSuffix}) }},
	} {
		r.repairs(t, c.change, "registered web: "+c.reason, web)
		r.quiet(t, web)
	}
	if got := r.checks(t, web.ID); len(got) != 4 {
		t.Errorf("checks: %v", got)
	}
	// Entries that are in the catalog but not at the agent.
	r.repairs(t, func() {
		ghost := r.want(t, instance("ghost"))
		if _, err := r.admin.Catalog().Register(&api.CatalogRegistration{
			Node: "server-0", SkipNodeUpdate: true,
			Service: &api.AgentService{
				ID: ghost.instance.ID, Service: "ghost", Meta: ghost.registration.Meta,
			},
		}, nil); err != nil {
			t.Fatal(err)
		}
	}, "removed ghost: not wanted", web)
	r.quiet(t, web)
}

// TestAliasInCatalog has the alias of a service without checks in the catalog as an agent leaves it that takes the
// state before the evaluation for the one that it has sent. Consul looks every second whether the sidecar listens.
func TestAliasInCatalog(t *testing.T) {
	t.Parallel()
	r := start(t, policy, consul.Options{})
	web := instance("web", sidecar())
	r.register(t, web)
	r.settled(t, web)
	proxy := web.ID + sidecarSuffix
	alias := *r.checks(t, proxy)["service:"+proxy+":2"]
	alias.Status, alias.Output = api.HealthCritical, ""
	_, err := r.admin.Catalog().Register(&api.CatalogRegistration{
		Node: "server-0", SkipNodeUpdate: true, Checks: api.HealthChecks{&alias},
	}, nil)
	check.NoError(t, err)
	_, done := r.sync(t, web)
	wantDone(t, done)
	if now := r.checks(t, proxy)["service:"+proxy+":2"]; now.Status != api.HealthPassing {
		t.Errorf("the alias is %+v", now)
	}
	r.register(t, web) // which sets the interval back
	r.settled(t, web)
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(r.inCatalog(t, proxy).Port))
	l, err := net.Listen("tcp", address)
	check.NoError(t, err)
	defer l.Close()
	check.Eventually(t, "a check that passes", func() bool { // at the agent, which may tell the catalog later
		var all map[string]struct{ Status, Interval string }
		_, err := r.admin.Raw().Query("/v1/agent/checks", &all, nil)
		check.NoError(t, err)
		one := all["service:"+proxy+":1"]
		if one.Status == api.HealthPassing && one.Interval != "1s" {
			t.Fatalf("it is checked every %s", one.Interval)
		}
		return one.Status == api.HealthPassing
	})
}

// TestMissing removes whole services and checks at the agent.
func TestMissing(t *testing.T) {
	t.Parallel()
	r := start(t, policy, consul.Options{})
	web, api2 := instance("web", everything), instance("api")
	r.register(t, web, api2)
	index := r.settled(t, web, api2)
	agent := r.admin.Agent()
	for _, c := range []struct {
		lose func() error
		want string
	}{
		{func() error { return agent.ServiceDeregister(web.ID) }, "registered web: missing"},
		{func() error { return agent.ServiceDeregister(web.ID + sidecarSuffix) }, "registered web: missing"},
		{func() error { return agent.ServiceDeregister(api2.ID) }, "registered api: missing"},
		{func() error { return agent.CheckDeregister("service:" + web.ID + ":1") }, "registered web: checks"},
		{func() error { return agent.CheckDeregister("service:" + web.ID + ":process") }, "registered web: checks"},
		{func() error { return agent.CheckDeregister("service:" + web.ID + sidecarSuffix + ":1") }, "registered web: checks"},
	} {
		check.NoError(t, c.lose())
		var done []string
		index, done = r.syncFrom(t, index, web, api2)
		wantDone(t, done, c.want)
		r.quiet(t, web, api2)
	}
}

// TestRefused checks that an instance that Consul refuses does not prevent the repair of others.
func TestRefused(t *testing.T) {
	t.Parallel()
	r := start(t, policy, consul.Options{})
	var all []registration.Instance
	for n := range 3 * parallel {
		all = append(all, instance(fmt.Sprintf("s%d", n), func(s *service.Service) {
			if n%parallel == 0 {
				s.Address = "0.0.0.0"
			}
		}))
	}
	_, _, err := r.Sync(t.Context(), r.consul, registration.SyncRequest{Owner: owner, Instances: all})
	wantCode(t, err, codes.InvalidArgument, "Invalid service address")
	if n := len(r.Cluster.Services(t)); n != len(all)-3 {
		t.Errorf("%d services exist, want all but 3 of %d", n, len(all))
	}
}

// TestRenamed starts with a wrong cached name of the agent's node.
func TestRenamed(t *testing.T) {
	t.Parallel()
	r := start(t, policy, consul.Options{})
	web := instance("web")
	r.register(t, web)
	r.settled(t, web)
	r.nodes[r.consul] = "gone"
	_, done := r.sync(t, web)
	wantDone(t, done)
	r.quiet(t, web)
	if _, err := r.admin.Catalog().Register(&api.CatalogRegistration{
		Node: "old", Address: "127.0.0.1",
		Check: &api.AgentCheck{
			Node: "old", CheckID: serfHealth, Name: "x", Status: "critical",
		}, Service: r.inCatalog(t, web.ID),
	}, nil); err != nil {
		t.Fatal(err)
	}
	r.nodes[r.consul] = "old" // a node that has all wanted services but does not exist
	_, done = r.sync(t, web)
	wantDone(t, done)
	if got := r.nodes[r.consul]; got != "server-0" {
		t.Errorf("the node is %q", got)
	}
	r.quiet(t, web)
}

// TestForeign checks that services and checks of others are not changed, and that all leftovers of the owner
// are removed.
func TestForeign(t *testing.T) {
	t.Parallel()
	r := start(t, policy, consul.Options{})
	agent := r.admin.Agent()
	foreign := map[string]map[string]string{
		"plain":        nil,
		"other-node":   {"external-source": "pannier", "pannier-cluster": "c1", "pannier-node": "n2"},
		"other-world":  {"external-source": "pannier", "pannier-cluster": "c2", "pannier-node": "n1"},
		"nomad":        {"external-source": "nomad", "pannier-cluster": "c1", "pannier-node": "n1"},
		"pannier:n1:x": {},
	}
	for id, meta := range foreign {
		check.NoError(t, agent.ServiceRegister(&api.AgentServiceRegistration{
			ID: id, Name: "svc", Meta: meta,
			Check: &api.AgentServiceCheck{TTL: "1h"},
		}))
	}
	stays, goes := instance("stays", everything), instance("goes", everything)
	r.register(t, stays, goes)
	r.settled(t, stays, goes)
	check.NoError(t, agent.EnableServiceMaintenance(stays.ID, "for a test"))
	check.NoError(t, agent.CheckRegister(&api.AgentCheckRegistration{
		ID: "theirs", Name: "x", ServiceID: stays.ID,
		AgentServiceCheck: api.AgentServiceCheck{TTL: "1h"},
	}))
	_, done := r.sync(t, stays)
	wantDone(t, done, "removed goes: not wanted", "removed goes-sidecar-proxy: not wanted")
	r.quiet(t, stays)
	r.agentHasPort(t, stays, 1)
	_, done = r.sync(t, stays)
	wantDone(t, done, "registered stays: port")
	checks := r.checks(t, stays.ID)
	if checks["_service_maintenance:"+stays.ID] == nil || checks["theirs"] == nil {
		t.Errorf("a repair removed the checks of others: %v", checks)
	}
	_, done = r.sync(t)
	wantDone(t, done, "removed stays: not wanted", "removed stays-sidecar-proxy: not wanted")
	left := r.Cluster.Services(t)
	if len(left) != len(foreign) {
		t.Errorf("left are %v, want %v", left, foreign)
	}
	for id := range foreign {
		if r.inCatalog(t, id) == nil || len(r.checks(t, id)) != 1 {
			t.Errorf("%s was changed", id)
		}
	}
}

// agentHasPort changes only the port, and keeps the checks of others.
func (r *rig) agentHasPort(t *testing.T, i registration.Instance, port int) {
	t.Helper()
	w := r.want(t, i)
	w.registration.Port = port
	check.NoError(t, r.admin.Agent().ServiceRegister(w.registration))
}

// TestCentralConfig checks that settings that Consul's central configuration adds to a proxy do not count as
// drift.
func TestCentralConfig(t *testing.T) {
	t.Parallel()
	r := start(t, policy, consul.Options{})
	web := instance("web", everything)
	plain := instance("plain", sidecar())
	r.register(t, web, plain)
	r.settled(t, web, plain)
	entries := r.admin.ConfigEntries()
	for _, e := range []api.ConfigEntry{
		&api.ProxyConfigEntry{
			Kind: api.ProxyDefaults, Name: api.ProxyConfigGlobal,
			Config: map[string]any{
				"protocol": "http2", "local_connect_timeout_ms": 9, "no": true,
				"nested": map[string]any{"b": 1},
			},
			MeshGateway: api.MeshGatewayConfig{Mode: "local"}, Expose: api.ExposeConfig{Checks: true},
		},
		&api.ServiceConfigEntry{Kind: api.ServiceDefaults, Name: "web", UpstreamConfig: &api.UpstreamConfiguration{
			Overrides: []*api.UpstreamConfig{
				{Name: "db", ConnectTimeoutMs: 7, MeshGateway: api.MeshGatewayConfig{Mode: "none"}},
				{Name: "else", ConnectTimeoutMs: 7},
			},
			Defaults: &api.UpstreamConfig{ConnectTimeoutMs: 8},
		}},
		&api.ServiceConfigEntry{
			Kind: api.ServiceDefaults, Name: "plain", Mode: api.ProxyModeTransparent,
			UpstreamConfig: &api.UpstreamConfiguration{
				Overrides: []*api.UpstreamConfig{{Name: "else", ConnectTimeoutMs: 7}},
			},
		},
	} {
		if _, _, err := entries.Set(e, nil); err != nil {
			t.Fatal(err)
		}
	}
	check.Eventually(t, "the agent has merged it", func() bool {
		return r.inCatalog(t, web.ID+sidecarSuffix).Proxy.Config["local_connect_timeout_ms"] != nil &&
			len(r.inCatalog(t, plain.ID+sidecarSuffix).Proxy.Upstreams) > 0
	})
	r.quiet(t, web, plain)
	r.register(t, web)
	r.settled(t, web, plain)
	r.quiet(t, web, plain)
}

// TestOneQuery keeps 1,000 services in sync with one blocking query.
func TestOneQuery(t *testing.T) {
	t.Parallel()
	r := start(t, policy, consul.Options{})
	var all []registration.Instance
	for n := range 1000 {
		i := instance(fmt.Sprintf("s%03d", n))
		i.Service.EnableTagOverride = n%10 == 0
		all = append(all, i)
	}
	ctx := bounded(t, 5*time.Minute)
	began := time.Now()
	index, changes, err := r.Sync(ctx, r.consul, registration.SyncRequest{Owner: owner, Instances: all})
	if err != nil || len(changes) != len(all) {
		t.Fatalf("%d changes, %v", len(changes), err)
	}
	t.Logf("registered and seen in the catalog within %s", time.Since(began).Round(time.Millisecond))
	r.quiet(t, all...)

	// It blocks while nothing changes, and a change ends it.
	before := len(r.proxy.Requests())
	req := registration.SyncRequest{Owner: owner, Instances: all, Index: index, Wait: 500 * time.Millisecond}
	began = time.Now()
	same, changes, err := r.Sync(ctx, r.consul, req)
	if err != nil || len(changes) != 0 || same != index || time.Since(began) < req.Wait {
		t.Errorf("got index %d, %v, %v after %s; want index %d after %s", same, changes, err, time.Since(began), index,
			req.Wait)
	}
	if asked := r.proxy.Requests()[before:]; len(asked) != 1 {
		t.Errorf("a pass made the requests %v", asked)
	}
	req.Wait = time.Minute
	woken := make(chan error, 1)
	go func() {
		_, changes, err := r.Sync(ctx, r.consul, req)
		if err == nil && (len(changes) != 1 || changes[0].ID != all[7].ID) {
			err = fmt.Errorf("changes: %v", changes)
		}
		woken <- err
	}()
	check.Eventually(t, "it waits", func() bool { return r.proxy.Count("GET", "/v1/internal/ui/node/server-0") >= 2 })
	check.NoError(t, r.admin.Agent().ServiceDeregister(all[7].ID))
	select {
	case err := <-woken:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it did not wake up when a service was lost")
	}

	began = time.Now()
	if _, changes, err = r.Sync(ctx, r.consul, registration.SyncRequest{Owner: owner}); err != nil ||
		len(changes) != len(all) {
		t.Fatalf("%d changes, %v", len(changes), err)
	}
	t.Logf("removed within %s", time.Since(began).Round(time.Millisecond))
}

// TestCancel cancels a waiting Sync, and checks that nothing is left behind.
func TestCancel(t *testing.T) {
	r := start(t, policy, consul.Options{})
	web := instance("web")
	r.register(t, web)
	index := r.settled(t, web)
	s := New()
	before := goleak.IgnoreCurrent()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	asked := r.proxy.Count("GET", "/v1/internal/ui")
	go func() {
		_, _, err := s.Sync(ctx, r.consul,
			registration.SyncRequest{Owner: owner, Instances: []registration.Instance{web}, Index: index, Wait: time.Minute})
		ended <- err
	}()
	check.Eventually(t, "it waits", func() bool { return r.proxy.Count("GET", "/v1/internal/ui") > asked })
	cancel()
	select {
	case err := <-ended:
		wantCode(t, err, codes.Canceled)
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	r.proxy.Down() // this also ends the goroutines of the proxy's connections
	goleak.VerifyNone(t, before)
	r.proxy.Up(t)
}

// TestLostState restarts an agent that has lost its services.
func TestLostState(t *testing.T) {
	t.Parallel()
	r := start(t, policy, consul.Options{Servers: 3})
	web := instance("web", everything)
	tagged := instance("tagged", func(s *service.Service) { s.EnableTagOverride = true })
	r.register(t, web, tagged)
	index := r.settled(t, web, tagged)
	r.catalogHas(t, tagged.ID, func(s *api.AgentService) { s.Tags = []string{"by", "others"} })
	index, done := r.syncFrom(t, index, web, tagged)
	wantDone(t, done)
	r.Restart(0, true)
	check.Eventually(t, "both are there again", func() bool {
		_, changes, err := r.Sync(bounded(t, time.Minute), r.consul, registration.SyncRequest{
			Owner: owner, Instances: []registration.Instance{web, tagged}, Index: index, Wait: time.Second,
		})
		for _, c := range changes { // more than once if Consul's catalog was late
			done = append(done, c.ID)
		}
		return err == nil && slices.Contains(done, web.ID) && slices.Contains(done, tagged.ID)
	})
	if got := r.inCatalog(t, tagged.ID); !slices.Equal(got.Tags, []string{"by", "others"}) {
		t.Errorf("tags %v, want those of the catalog from before", got.Tags)
	}
	check.Eventually(t, "all is quiet", func() bool {
		_, done := r.sync(t, web, tagged)
		return len(done) == 0
	})
	if got := r.Cluster.Services(t); got[web.ID] == nil || got[web.ID+sidecarSuffix] == nil || got[tagged.ID] == nil {
		t.Errorf("the agent has %v", got)
	}
}

// TestAnotherOwner checks that the instance of another cluster or node is not changed under its id, until somebody
// deregisters it.
func TestAnotherOwner(t *testing.T) {
	t.Parallel()
	r := start(t, policy, consul.Options{})
	web, own := instance("web", everything), instance("own")
	r.register(t, web)
	r.settled(t, web)
	before, writes := r.inCatalog(t, web.ID), func() (n int) {
		for _, request := range r.proxy.Requests() {
			if !strings.HasPrefix(request, "GET ") {
				n++
			}
		}
		return n
	}
	for _, other := range []registration.Owner{{Cluster: "c2", Node: "n1"}, {Cluster: "c1", Node: "n2"}} {
		was := writes()
		theirs := web
		theirs.Owner = other
		for range 2 {
			_, changes, err := r.Sync(t.Context(), r.consul,
				registration.SyncRequest{Owner: other, Instances: []registration.Instance{theirs}})
			check.NoError(t, err)
			if len(changes) != 1 || changes[0].ID != web.ID || changes[0].Action != registration.Conflict ||
				!strings.Contains(changes[0].Reason, `node "n1" of the cluster c1`) ||
				!strings.Contains(changes[0].Reason, "consul services deregister -id="+web.ID) {
				t.Errorf("changes: %+v", changes)
			}
		}
		_, err := r.Register(t.Context(), r.consul, theirs)
		wantCode(t, err, codes.AlreadyExists, "register service", `node "n1" of the cluster c1`)
		check.NoError(t, r.Deregister(t.Context(), r.consul, other, web.ID))
		if n := writes(); n != was {
			t.Errorf("%d writes to Consul", n-was)
		}
	}
	if after := r.inCatalog(t, web.ID); !reflect.DeepEqual(after, before) {
		t.Errorf("it is\n%+v, it was\n%+v", after, before)
	}
	r.quiet(t, web)

	// What else the other owner has is in order, and the conflict ends with the registration.
	other := registration.Owner{Cluster: "c2", Node: "n1"}
	web.Owner, own.Owner = other, other
	r.removeAtEnd(t, own)
	pass := func() (done []string) {
		t.Helper()
		_, changes, err := r.Sync(t.Context(), r.consul,
			registration.SyncRequest{Owner: other, Instances: []registration.Instance{web, own}})
		check.NoError(t, err)
		for _, c := range changes {
			done = append(done, string(c.Action)+" "+strings.TrimPrefix(c.ID, "pannier:n1:default:w:"))
		}
		return done
	}
	wantDone(t, pass(), "registered own", "conflict web")
	check.NoError(t, r.admin.Agent().ServiceDeregister(web.ID))
	wantDone(t, pass(), "registered web")
	if now := r.inCatalog(t, web.ID); now == nil || now.Meta[markCluster] != "c2" {
		t.Errorf("it is %+v", now)
	}
	check.NoError(t, r.Deregister(t.Context(), r.consul, other, web.ID))
	if left := r.Cluster.Services(t); len(left) != 1 {
		t.Errorf("Consul has %v", left)
	}
}

// TestReconfigured changes the proxy-defaults while a pass waits: it reports the digest of each proxy that they
// change, and as long as the host has another one.
func TestReconfigured(t *testing.T) {
	t.Parallel()
	r := start(t, policy, consul.Options{})
	web, plain := instance("web", sidecar()), instance("plain")
	r.register(t, web, plain)
	r.settled(t, web, plain)
	r.quiet(t, web, plain) // nobody asks
	web.ProxyDigest, plain.ProxyDigest = "unknown", "unknown"
	pass := func(index uint64) (uint64, []registration.Change) {
		t.Helper()
		index, changes, err := r.Sync(bounded(t, time.Minute), r.consul, registration.SyncRequest{
			Owner: owner, Instances: []registration.Instance{web, plain}, Index: index, Wait: 30 * time.Second,
		})
		check.NoError(t, err)
		return index, changes
	}
	reported := func(index uint64) uint64 {
		t.Helper()
		var changes []registration.Change
		before := web.ProxyDigest
		check.Eventually(t, "it is reported", func() bool {
			index, changes = pass(index)
			return len(changes) > 0
		})
		if _, again := pass(0); !reflect.DeepEqual(again, changes) {
			t.Errorf("first %+v, then %+v", changes, again)
		}
		c := changes[0]
		if len(changes) > 1 || c.ID != web.ID || c.Action != registration.Reconfigured || c.ProxyDigest == before {
			t.Errorf("it reports %+v", changes)
		}
		web.ProxyDigest = c.ProxyDigest
		r.quiet(t, web, plain)
		return index
	}
	index := reported(0)
	first := web.ProxyDigest
	for _, e := range []*api.ProxyConfigEntry{
		{Config: map[string]any{"envoy_statsd_url": "udp://127.0.0.1:1"}},
		{AccessLogs: &api.AccessLogsConfig{Enabled: true}},
	} {
		e.Kind, e.Name = api.ProxyDefaults, api.ProxyConfigGlobal
		_, _, err := r.admin.ConfigEntries().Set(e, nil)
		check.NoError(t, err)
		index = reported(index)
	}
	if _, err := r.admin.ConfigEntries().Delete(api.ProxyDefaults, api.ProxyConfigGlobal, nil); err != nil {
		t.Fatal(err)
	}
	reported(index)
	if web.ProxyDigest != first {
		t.Errorf("without proxy-defaults the digest is %s, and was %s", web.ProxyDigest, first)
	}
}

// TestAnotherToken replaces the host's token and deletes the one before. Consul's agent uses the token of a service's
// registration for as long as that lasts, so that it would not bring any change to the catalog any more.
func TestAnotherToken(t *testing.T) {
	t.Parallel()
	r := start(t, policy, consul.Options{})
	web := instance("web", sidecar(), func(s *service.Service) {
		s.Checks = []service.Check{{Type: service.CheckProcess, Interval: "1h"}}
	})
	r.register(t, web)
	r.settled(t, web)
	before := r.token
	secret := r.Token(t, "node")
	check.NoError(t, os.WriteFile(r.consul.TokenFile, []byte(secret), 0o600))
	token, _, err := r.Client(secret).ACL().TokenReadSelf(nil)
	check.NoError(t, err)
	r.token = token.AccessorID
	if _, done := r.sync(t, web); !slices.Equal(done, []string{"registered web: meta"}) {
		t.Errorf("a pass did %v", done)
	}
	_, err = r.admin.ACL().TokenDelete(before, nil)
	check.NoError(t, err)
	for _, id := range []string{web.ID, web.ID + sidecarSuffix} {
		r.meta(t, r.inCatalog(t, id))
	}
	check.NoError(t, r.Heartbeat(t.Context(), r.consul, []registration.Beat{{ID: web.ID, Healthy: true}}))
	check.Eventually(t, "the catalog hears that it is well", func() bool {
		c := r.checks(t, web.ID)["service:"+web.ID+":process"]
		return c != nil && c.Status == api.HealthPassing
	})
	// A token that is gone is named, and with it what no longer works.
	_, err = r.admin.ACL().TokenDelete(r.token, nil)
	check.NoError(t, err)
	check.Eventually(t, "the agent has lost the token", func() bool {
		_, _, err = r.Sync(t.Context(), r.consul,
			registration.SyncRequest{Owner: owner, Instances: []registration.Instance{web}})
		return err != nil
	})
	for _, part := range []string{r.consul.TokenFile, "registered with it", "not kept up to date"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want %q in it", err, part)
		}
	}
	secret = r.Token(t, "node")
	check.NoError(t, os.WriteFile(r.consul.TokenFile, []byte(secret), 0o600))
	check.Eventually(t, "the agent knows the token", func() bool {
		_, _, err := r.Client(secret).ACL().TokenReadSelf(&api.QueryOptions{AllowStale: true})
		return err == nil
	})
}

// TestAnotherCA replaces the CA with which proxies verify Consul.
func TestAnotherCA(t *testing.T) {
	t.Parallel()
	r := start(t, policy, consul.Options{})
	web := instance("web", sidecar())
	r.register(t, web)
	r.settled(t, web)
	web.ProxyDigest = "unknown"
	pass := func() string {
		t.Helper()
		_, changes, err := r.Sync(t.Context(), r.consul,
			registration.SyncRequest{Owner: owner, Instances: []registration.Instance{web}})
		check.NoError(t, err)
		if len(changes) != 1 || changes[0].Action != registration.Reconfigured {
			t.Fatalf("it reports %+v", changes)
		}
		web.ProxyDigest = changes[0].ProxyDigest
		return web.ProxyDigest
	}
	mesh := pass()
	r.consul.GRPCCAFile = filepath.Join(t.TempDir(), "ca.pem")
	roots, _, err := r.admin.Agent().ConnectCARoots(nil)
	check.NoError(t, err)
	one := roots.Roots[0].RootCertPEM
	check.NoError(t, os.WriteFile(r.consul.GRPCCAFile, []byte(one+"\n"+one), 0o600))
	if file := pass(); file == mesh {
		t.Error("a CA in a file counts as the mesh's")
	}
	check.NoError(t, os.WriteFile(r.consul.GRPCCAFile, []byte(one), 0o600))
	pass()
	r.quiet(t, web)
	check.NoError(t, os.WriteFile(r.consul.GRPCCAFile, []byte("no certificate"), 0o600))
	if _, _, err := r.Sync(t.Context(), r.consul, registration.SyncRequest{
		Owner: owner, Instances: []registration.Instance{web},
	}); err == nil || !strings.Contains(err.Error(), r.consul.GRPCCAFile) {
		t.Errorf("got %v", err)
	}
	r.consul.GRPCCAFile = ""
}

// TestNull checks that no answer with null in it ends the plugin.
func TestNull(t *testing.T) {
	t.Parallel()
	r := start(t, policy, consul.Options{})
	web := instance("web", sidecar(), func(s *service.Service) { s.EnableTagOverride = true })
	r.register(t, web)
	web.ProxyDigest = "unknown"
	for path, answers := range map[string][]string{
		"/v1/internal/ui/node/": {`null`, `{"Services": [null], "Checks": [null]}`},
		"/v1/agent/services":    {`null`, `{"a": null}`},
		"/v1/agent/checks":      {`null`, `{"a": null}`},
		"/v1/agent/self":        {`null`, `{"Config": null}`},
		"/v1/acl/token/self":    {`null`},
		"/v1/agent/connect/ca/": {`null`, `{"Roots": [null]}`},
		"/v1/catalog/service/":  {`null`, `[null]`},
	} {
		for _, answer := range answers {
			r.proxy.Add(consul.Match{Path: path}, consul.Status(http.StatusOK, answer))
			other := New() // which has asked nothing yet
			ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
			func() {
				defer func() {
					if why := recover(); why != nil {
						t.Errorf("%s answers %s: panic: %v", path, answer, why)
					}
				}()
				// What they return is Consul's fault.
				_, _, _ = other.Sync(ctx, r.consul, registration.SyncRequest{Owner: owner, Instances: []registration.Instance{web}})
				_, _ = other.Register(ctx, r.consul, web)
			}()
			cancel()
			check.NoError(t, other.Close())
			r.proxy.Clear()
		}
	}
	web.ProxyDigest = ""
	r.settled(t, web)
}
