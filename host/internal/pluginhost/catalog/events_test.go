package catalog

import (
	"slices"
	"testing"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/storage"
)

func TestEachKindHasItsHandlers(t *testing.T) {
	c := New(&plugins{})
	var told []string
	tell := func(who string) func(supervisor.PluginEvent) {
		return func(e supervisor.PluginEvent) { told = append(told, who+": "+e.Type) }
	}
	c.Event(supervisor.PluginEvent{Kind: storage.Kind, Type: "nobody is there"})
	c.OnEvent(storage.Kind, tell("storage"))
	c.OnEvent(EveryKind, tell("all"))
	c.OnEvent(identity.Kind, tell("identity"))
	c.Event(supervisor.PluginEvent{Kind: storage.Kind, Type: "one"})
	c.Event(supervisor.PluginEvent{Kind: identity.Kind, Type: "two"})
	c.Event(supervisor.PluginEvent{Kind: "device.v1", Type: "three"})
	if want := []string{"all: one", "storage: one", "all: two", "identity: two", "all: three"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}
