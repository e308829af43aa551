package agentapi

import (
	"cmp"
	"strings"
)

// Ending describes what is stopped with the agent.
type Ending struct {
	Plugins   bool // and the drivers that the agent runs
	Workloads bool // before the agent
}

// Reloaded is what became of a configuration that was read again.
type Reloaded struct {
	// Changes are the blocks and keys that are taken over, or refused.
	Changes []Change
	// Restart names the other keys and blocks that have changed. They need a restart of the agent.
	Restart []string
}

// Change is what became of a changed block or key.
type Change struct {
	// Block such as plugin "x".
	Block string
	// Outcome is added, changed or removed, with ", waits" if it waits; or refused.
	Outcome string
	// Message says what it waits for, or why it is refused; it may be empty.
	Message string
}

// String describes the change in one line.
func (c Change) String() string {
	if c.Message == "" {
		return c.Block + ": " + c.Outcome
	}
	return c.Block + ": " + c.Outcome + ": " + c.Message
}

// String describes all changes in one line.
func (r Reloaded) String() string {
	var all []string
	for _, c := range r.Changes {
		all = append(all, c.String())
	}
	if len(r.Restart) > 0 {
		all = append(all, "needs a restart of the agent: "+strings.Join(r.Restart, ", "))
	}
	return cmp.Or(strings.Join(all, "; "), "nothing has changed")
}
