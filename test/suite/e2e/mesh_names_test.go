package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/testhost"
)

// Two hosts that have one name share a Consul agent: the second to come leaves the services of the first alone, and
// gets an id when somebody has deregistered it, as after a host was set up anew. They do not fight over it.
func TestTwoHostsOfOneName(t *testing.T) {
	t.Parallel()
	c := consul.Start(t, consul.Options{})
	host := func() *mesh {
		m := &mesh{consul: c, reach: c.Service("", ""), t: t}
		m.Host = testhost.New(t, consul.Config(m.reach), "sids", "consul-services", "envoy-bootstrap")
		m.Start()
		return m
	}
	one, two := host(), host()
	const id = "pannier:a:default:w:web"
	spec := sidecarService("web", "")
	one.Run("workload", "start", one.meshWorkload("w", spec))
	first := catalogEntry(t, c, id)
	two.Refused(4, []string{"register", `node "a" of the cluster`, "consul services deregister -id=" + id},
		"workload", "start", two.meshWorkload("w", spec))
	two.NothingInUse()
	if now := catalogEntry(t, c, id); now.ModifyIndex != first.ModifyIndex || len(c.Services(t)) != 2 {
		t.Errorf("the refused start has changed the service to %+v", now)
	}

	// The first is away, and the operator gives the second what it has left. The first comes back.
	one.Stop()
	check.NoError(t, c.Client(c.Management).Agent().ServiceDeregister(id))
	two.Run("workload", "start", two.Path("w.hcl"))
	second := catalogEntry(t, c, id)
	if second.ServiceMeta["pannier-cluster"] == first.ServiceMeta["pannier-cluster"] {
		t.Errorf("the second host has %+v", second)
	}
	one.Start()
	one.Eventually("the conflict is reported", func() error {
		if !strings.Contains(one.Run("events", "-recent", "1000"), "conflict") {
			return errors.New("there is no event")
		}
		return nil
	})
	if m := one.service("w").GetMessage(); !strings.Contains(m, `node "a" of the cluster`) {
		t.Errorf("the status of the service says %q", m)
	}
	// Each has also a service without a conflict. When that is repaired, everything else was compared too.
	for n, m := range []*mesh{one, two} {
		name := fmt.Sprint("own", n)
		m.Run("workload", "start", m.meshWorkload(name, sidecarService(name, "")))
		for range 3 {
			check.NoError(t, c.Client(c.Management).Agent().ServiceDeregister("pannier:a:default:"+name+":"+name))
			m.Eventually("its own service is repaired", func() error {
				if len(c.Services(t)) != 2*(n+2) {
					return errors.New("it is not there")
				}
				return nil
			})
		}
		m.Run("workload", "status", name)
	}
	if now := catalogEntry(t, c, id); now.ModifyIndex != second.ModifyIndex {
		t.Errorf("they fight: it was %+v, and is %+v", second, now)
	}
	if out := one.Run("events", "-recent", "1000"); strings.Count(out, " conflict ") != 1 {
		t.Errorf("the events of the first:\n%s", out)
	}
	if out := two.Run("events", "-recent", "1000"); strings.Contains(out, " conflict ") {
		t.Errorf("the events of the second:\n%s", out)
	}

	// What ends takes nothing of the other along.
	one.Run("workload", "stop", "w")
	if now := catalogEntry(t, c, id); now.ModifyIndex != second.ModifyIndex {
		t.Errorf("the stop of another host's workload has changed it to %+v", now)
	}
	one.Run("workload", "stop", "own0")
	two.Run("workload", "stop", "own1")
	two.Run("workload", "stop", "w")
	if left := c.Services(t); len(left) > 0 {
		t.Errorf("Consul has the services %v", left)
	}
	one.NothingInUse()
	two.NothingInUse()
}

// catalogEntry reads a service in the catalog; its index reports whether somebody has written it.
func catalogEntry(t *testing.T, c *consul.Cluster, id string) *api.CatalogService {
	t.Helper()
	found, _, err := c.Client(c.Management).Catalog().Service("web", "",
		&api.QueryOptions{Filter: fmt.Sprintf("ServiceID == %q", id)})
	if err != nil || len(found) != 1 {
		t.Fatalf("the catalog has %v of service %q: %v", found, id, err)
	}
	return found[0]
}
