package catalog

import (
	"slices"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
)

// EveryKind is the kind of a handler that is told the events of all plugins.
const EveryKind = ""

// OnEvent lets handle be told the events of plugins of one kind, such as storage.Kind,
// or EveryKind: each once, those of one process in their order. Events that came before
// are not told. handle must not block for long; it is called from several goroutines.
func (c *Catalog) OnEvent(kind string, handle func(supervisor.PluginEvent)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handlers[kind] = append(c.handlers[kind], handle)
}

// Event tells the handlers of an event. It is the supervisor's OnPluginEvent.
func (c *Catalog) Event(e supervisor.PluginEvent) {
	c.mu.Lock()
	handlers := slices.Clone(c.handlers[EveryKind])
	if e.Kind != EveryKind {
		handlers = append(handlers, c.handlers[e.Kind]...)
	}
	c.mu.Unlock()
	for _, handle := range handlers {
		handle(e)
	}
}
