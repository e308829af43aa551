package claim

import (
	"fmt"
	"time"
)

// MaxServers bounds the servers of a cluster, and with them bootstrap_expect and min_quorum.
const MaxServers = 15

// Autopilot says how the leader looks after the servers.
type Autopilot struct {
	// CleanupDeadServers takes servers that do not answer out of raft, as long as MinQuorum
	// servers are left, and never half of them at once.
	CleanupDeadServers bool `json:"cleanup_dead_servers"`
	// LastContactThreshold is how long a healthy server may be without a leader.
	LastContactThreshold time.Duration `json:"last_contact_threshold"`
	// MaxTrailingLogs is by how many entries a healthy server may lag.
	MaxTrailingLogs uint64 `json:"max_trailing_logs"`
	// MinQuorum is how many voters cleaning up leaves at least; 0: as many as formed the cluster.
	MinQuorum int `json:"min_quorum"`
	// ServerStabilizationTime is how long a server is healthy before it gets a vote.
	ServerStabilizationTime time.Duration `json:"server_stabilization_time"`
}

// DefaultAutopilot is what an operator gets who says nothing.
func DefaultAutopilot() Autopilot {
	return Autopilot{
		CleanupDeadServers: true, LastContactThreshold: 2 * time.Second, MaxTrailingLogs: 2000,
		ServerStabilizationTime: 10 * time.Second,
	}
}

// Validate checks that each number is one that the leader can go by. The error is a *FieldError.
func (a *Autopilot) Validate() error {
	c := checker{object: "autopilot"}
	if a.LastContactThreshold <= 0 {
		c.fail("last_contact_threshold", fmt.Sprintf("(%s) must be above 0", a.LastContactThreshold))
	}
	if a.ServerStabilizationTime <= 0 {
		c.fail("server_stabilization_time", fmt.Sprintf("(%s) must be above 0", a.ServerStabilizationTime))
	}
	if a.MinQuorum < 0 || a.MinQuorum > MaxServers {
		c.fail("min_quorum", fmt.Sprintf("(%d) must be 0 to %d", a.MinQuorum, MaxServers))
	}
	return c.err
}

// AutopilotChange says what an operator wants otherwise; nil: as it is.
type AutopilotChange struct {
	CleanupDeadServers      *bool          `json:"cleanup_dead_servers,omitempty"`
	LastContactThreshold    *time.Duration `json:"last_contact_threshold,omitempty"`
	ServerStabilizationTime *time.Duration `json:"server_stabilization_time,omitempty"`
	MinQuorum               *int           `json:"min_quorum,omitempty"`
}

// Change is the autopilot after a change. The error is a *FieldError.
func (a Autopilot) Change(by AutopilotChange) (Autopilot, error) {
	put(&a.CleanupDeadServers, by.CleanupDeadServers)
	put(&a.LastContactThreshold, by.LastContactThreshold)
	put(&a.ServerStabilizationTime, by.ServerStabilizationTime)
	put(&a.MinQuorum, by.MinQuorum)
	err := a.Validate()
	return a, err
}

func put[T any](dst, value *T) {
	if value != nil {
		*dst = *value
	}
}
