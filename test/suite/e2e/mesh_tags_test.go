package e2e

import (
	"fmt"
	"slices"
	"testing"

	"github.com/hashicorp/consul/api"
)

// TestTagsInTheCatalog changes tags like another tool would. The changes stay if the spec sets
// enable_tag_override, and are reverted otherwise. A new spec replaces both.
func TestTagsInTheCatalog(t *testing.T) {
	t.Parallel()
	m := newMesh(t, minted, "")
	m.open()
	spec := func(tag string) string {
		return m.meshWorkload("w", fmt.Sprintf(`
  service "theirs" {
    port                = 9001
    tags                = [%[1]q]
    enable_tag_override = true
    connect {
      native = true
    }
  }
  service "ours" {
    port = 9002
    tags = [%[1]q]
  }
`, tag))
	}
	m.Run("workload", "start", spec("v1"))
	m.tagsAre(map[string]string{"theirs": "v1", "ours": "v1"})
	token := m.workload("w").GetServices()[0].GetTokenAccessor()

	m.changeTags("theirs", "others")
	m.changeTags("ours", "others")
	m.tagsAre(map[string]string{"theirs": "others", "ours": "v1"})
	// Other changes are reverted, and the tags stay.
	m.change("theirs", func(s *api.AgentService) { s.Meta["added"] = "by others" })
	m.Eventually("the service is repaired", func() error {
		if _, there := m.inCatalog("theirs").ServiceMeta["added"]; there {
			return fmt.Errorf("its meta are %v", m.inCatalog("theirs").ServiceMeta)
		}
		return nil
	})
	m.tagsAre(map[string]string{"theirs": "others", "ours": "v1"})
	// The result is the same after a restart, which compares everything.
	m.Kill()
	m.Start()
	m.changeTags("ours", "others")
	m.tagsAre(map[string]string{"theirs": "others", "ours": "v1"})

	m.Run("workload", "start", spec("v2"))
	m.tagsAre(map[string]string{"theirs": "v2", "ours": "v2"})
	if now := m.workload("w").GetServices()[0].GetTokenAccessor(); now != token || token == "" {
		t.Errorf("with other tags the token %s became %s", token, now)
	}
	m.changeTags("theirs", "others")
	m.changeTags("ours", "others")
	m.tagsAre(map[string]string{"theirs": "others", "ours": "v2"})
	m.Run("workload", "stop", "w")
	m.nothingInMesh()
}

// tagsAre waits until the catalog has the expected tag for each service.
func (m *mesh) tagsAre(want map[string]string) {
	m.t.Helper()
	m.Eventually(fmt.Sprintf("the tags are %v", want), func() error {
		for name, tag := range want {
			if got := m.inCatalog(name).ServiceTags; !slices.Equal(got, []string{tag}) {
				return fmt.Errorf("%s has %q", name, got)
			}
		}
		return nil
	})
}

// inCatalog returns the only instance of a service.
func (m *mesh) inCatalog(name string) *api.CatalogService {
	m.t.Helper()
	all, _, err := m.consul.Client(m.consul.Management).Catalog().Service(name, "", nil)
	if err != nil {
		m.t.Fatal(err)
	}
	if len(all) != 1 {
		m.t.Fatalf("the catalog has %d instances of %s", len(all), name)
	}
	return all[0]
}

func (m *mesh) changeTags(name string, tags ...string) {
	m.t.Helper()
	m.change(name, func(s *api.AgentService) { s.Tags = tags })
}

// change changes a service in the catalog, bypassing the agent that registered it.
func (m *mesh) change(name string, change func(s *api.AgentService)) {
	m.t.Helper()
	client := m.consul.Client(m.consul.Management)
	is := m.inCatalog(name)
	node, _, err := client.Catalog().Node(is.Node, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	service := node.Services[is.ServiceID]
	change(service)
	_, err = client.Catalog().Register(&api.CatalogRegistration{
		Node: is.Node, Address: is.Address, SkipNodeUpdate: true, Service: service,
	}, nil)
	if err != nil {
		m.t.Fatal(err)
	}
}
