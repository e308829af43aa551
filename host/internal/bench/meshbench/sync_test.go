package meshbench

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/consul"
)

const (
	services = 1000
	drifted  = 10
)

var owner = registration.Owner{Cluster: "bench", Node: node}

// instance returns a service of a separate workload.
func instance(name string) registration.Instance {
	return registration.Instance{
		ID: "pannier:a:default:" + name + ":" + name, Owner: owner, Namespace: "default", Workload: name,
		Service: service.Service{
			Name: name, Port: "8080", Tags: []string{"v1", "bench"},
			Meta: map[string]string{"team": "bench"},
		},
	}
}

// syncBench keeps services in sync through a proxy that counts the requests to Consul.
type syncBench struct {
	*mesh
	proxy *consul.Proxy
	reach service.Consul // through the proxy
	want  []registration.Instance
}

// measureSync registers services and measures passes of Sync over them.
func measureSync(b *testing.B, m *mesh, r *table.Section) {
	const passes = 20
	s := &syncBench{mesh: m, proxy: m.consul.Proxy(b, 0)}
	s.reach = s.proxy.Service(m.reach)
	for n := range services {
		s.want = append(s.want, instance(fmt.Sprintf("service-%04d", n)))
	}
	at := time.Now()
	parallel(b, services, 16, func(i int) error {
		return m.plugin.DoRegistration(b.Context(), "", func(ctx context.Context, c registration.Registration) error {
			_, err := c.Register(ctx, s.reach, s.want[i])
			return err
		})
	})
	registered := time.Since(at)
	asked := len(s.proxy.Requests())
	s.settled(b)

	var direct, repair table.Samples
	var reads, writes, repairReads, repairWrites int
	for range measure.Turns(passes, 20*time.Second) {
		s.reach = s.proxy.Service(m.reach)
		before := len(s.proxy.Requests())
		if err := s.quiet(b.Context(), 0); err != nil {
			b.Fatal(err)
		}
		r, w := s.asked(before)
		reads, writes = max(reads, r), max(writes, w)
		s.reach = m.reach
		direct = append(direct, took(b, func(ctx context.Context) error { return s.quiet(ctx, 0) }))
	}
	s.reach = s.proxy.Service(m.reach)
	index := s.settled(b)
	before := len(s.proxy.Requests())
	if err := s.quiet(b.Context(), index); err != nil {
		b.Fatal(err)
	}
	blocking, written := s.asked(before)
	for range measure.Turns(passes, 20*time.Second) {
		s.drift(b)
		before := len(s.proxy.Requests())
		repair = append(repair, took(b, func(ctx context.Context) error {
			_, changes, err := s.pass(ctx, 0)
			if err == nil && len(changes) != drifted {
				err = fmt.Errorf("a pass has repaired %d services, want %d: %v", len(changes), drifted, changes)
			}
			return err
		}))
		r, w := s.asked(before)
		repairReads, repairWrites = max(repairReads, r), max(repairWrites, w)
	}
	r.Add(
		table.Row{What: "a registration, 16 at once: requests to Consul", Value: float64(asked) / services},
		table.Row{What: "registrations per second, 16 at once", Value: services / registered.Seconds(), Unit: "/s"},
		table.Row{What: "a pass without drift: queries", Value: float64(max(reads, blocking)), AtMost: 1},
		table.Row{What: "a pass without drift: writes", Value: float64(writes + written)},
		direct.Row("a pass without drift, p50", 0.5),
		table.Row{What: "a pass that finds 10 services missing: queries, at most", Value: float64(repairReads)},
		table.Row{What: "a pass that finds 10 services missing: writes, at most", Value: float64(repairWrites)},
		repair.Row("a pass that finds 10 services missing, until the catalog has them, p50", 0.5),
	)
}

// pass makes one Sync through the host. With an index it blocks until the catalog has changed, or for a
// second.
func (s *syncBench) pass(ctx context.Context, index uint64) (next uint64, changes []registration.Change, err error) {
	req := registration.SyncRequest{Owner: owner, Instances: s.want, Index: index}
	if index > 0 {
		req.Wait = time.Second
	}
	err = s.plugin.DoRegistration(ctx, "", func(ctx context.Context, c registration.Registration) (err error) {
		next, changes, err = c.Sync(ctx, s.reach, req)
		return err
	})
	return next, changes, err
}

// quiet makes a pass, which must find nothing to do.
func (s *syncBench) quiet(ctx context.Context, index uint64) error {
	_, changes, err := s.pass(ctx, index)
	if err == nil && len(changes) > 0 {
		err = fmt.Errorf("a pass without drift has done %v", changes)
	}
	return err
}

// settled makes passes until the agent has updated the catalog completely.
func (s *syncBench) settled(b *testing.B) (index uint64) {
	b.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		index, changes, err := s.pass(b.Context(), 0)
		if err != nil {
			b.Fatal(err)
		}
		if len(changes) == 0 {
			return index
		}
		if time.Now().After(deadline) {
			b.Fatalf("the services are not in sync after a minute: %v", changes)
		}
	}
}

// drift removes ten services directly in Consul, and waits until they are gone from the catalog.
func (s *syncBench) drift(b *testing.B) {
	b.Helper()
	client := s.consul.Client(s.consul.Management)
	for n := range drifted {
		if err := client.Agent().ServiceDeregister(s.want[n*(services/drifted)].ID); err != nil {
			b.Fatal(err)
		}
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		there, _, err := client.Catalog().NodeServiceList(s.consul.Servers[0].Name, nil)
		if err != nil {
			b.Fatal(err)
		}
		left := 0
		for _, service := range there.Services {
			if strings.HasPrefix(service.Service, "service-") {
				left++
			}
		}
		if left == services-drifted {
			return
		}
		if time.Now().After(deadline) {
			b.Fatalf("the catalog has %d services, want %d", left, services-drifted)
		}
	}
}

// asked counts the requests to the proxy since then.
func (s *syncBench) asked(since int) (queries, writes int) {
	for _, request := range s.proxy.Requests()[since:] {
		if strings.HasPrefix(request, "GET ") {
			queries++
		} else {
			writes++
		}
	}
	return queries, writes
}
