package services

import (
	"slices"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
)

var others = []string{"by", "others"}

// othersTag changes a service's tags in the catalog, as another tool would.
func (r *rig) othersTag(t *testing.T, i registration.Instance) {
	t.Helper()
	r.catalogHas(t, i.ID, func(s *api.AgentService) { s.Tags = others })
}

func (r *rig) wantTags(t *testing.T, i registration.Instance, want ...string) {
	t.Helper()
	if got := r.inCatalog(t, i.ID).Tags; !slices.Equal(got, want) {
		t.Errorf("tags %v, want %v", got, want)
	}
}

// TestTagOverride changes tags through the catalog. With EnableTagOverride they survive Sync, and without it
// they are reverted. A new registration replaces them in both cases.
func TestTagOverride(t *testing.T) {
	t.Parallel()
	r := start(t, policy, consul.Options{})
	t.Run("true", func(t *testing.T) {
		i := instance("web", sidecar(), func(s *service.Service) { s.EnableTagOverride = true })
		r.register(t, i)
		r.settled(t, i)
		r.othersTag(t, i)
		r.quiet(t, i)
		r.wantTags(t, i, others...)

		// The same registration, which the agent does not write to the catalog again.
		r.register(t, i)
		r.wantTags(t, i, "a", "b")

		// Other changes are reverted, at the agent and in the catalog, and the tags stay.
		r.repairs(t, func() {
			r.agentHasPort(t, i, 1)
			check.Eventually(t, "the catalog has the change", func() bool { return r.inCatalog(t, i.ID).Port == 1 })
			r.catalogHas(t, i.ID, func(s *api.AgentService) { s.Tags = []string{"unseen"} })
		}, "registered web: port", i)
		r.wantTags(t, i, "unseen")
		r.repairs(t, func() {
			r.catalogHas(t, i.ID, func(s *api.AgentService) { s.Tags, s.Port = []string{"unseen", "too"}, 2 })
		}, "registered web: port", i)
		r.wantTags(t, i, "unseen", "too")

		r.othersTag(t, i)
		i.Service.Tags = []string{"new"}
		r.register(t, i)
		r.wantTags(t, i, "new")
		r.settled(t, i)
		r.quiet(t, i)

		// A service that the agent has lost is registered again with the tags that were last seen in the
		// catalog.
		r.othersTag(t, i)
		r.quiet(t, i)
		check.NoError(t, r.admin.Agent().ServiceDeregister(i.ID))
		check.Eventually(t, "the catalog has lost it", func() bool { return r.inCatalog(t, i.ID) == nil })
		_, done := r.sync(t, i)
		wantDone(t, done, "registered web: missing")
		r.wantTags(t, i, others...)
		r.othersTag(t, i)
		r.register(t, i)
		r.wantTags(t, i, "new")
	})
	t.Run("false", func(t *testing.T) {
		i := instance("web", sidecar())
		r.register(t, i)
		r.settled(t, i)
		r.repairs(t, func() { r.othersTag(t, i) }, "registered web: tags", i)
		r.wantTags(t, i, "a", "b")
		r.othersTag(t, i)
		i.Service.Tags = []string{"new"}
		r.register(t, i)
		check.Eventually(t, "the catalog has the new tags",
			func() bool { return slices.Equal(r.inCatalog(t, i.ID).Tags, []string{"new"}) })
		r.settled(t, i)
		r.quiet(t, i)
	})
}
