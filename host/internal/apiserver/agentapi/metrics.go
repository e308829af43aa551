package agentapi

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/apiserver/operator"
	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/host/internal/workload"
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("pannier_"+name, help, labels, nil)
}

var (
	volumesDesc   = desc("volumes", "Registered volumes.")
	claimsDesc    = desc("claims", "Claims in the ledger by state.", "state")
	workloadsDesc = desc("workloads", "Workloads of this node by state; ended ones are forgotten after a while.",
		"state")
	releasesDesc = desc("workload_releases_waiting",
		"Workloads of this node whose release failed at least once and is tried again, by why the last try failed.",
		"reason")
	triesDesc = desc("workload_release_failed_tries_total",
		"Tries to release a workload of this node that failed, since the agent started.")
	driverDesc         = desc("driver_healthy", "Whether a CSI driver of this node is healthy.", "driver")
	driverRestartsDesc = desc("driver_restarts_total",
		"Restarts of a CSI driver that the agent runs, since the agent started.", "driver")
	consulDesc = desc("consul_in_sync", "Whether the services of this node's workloads are in sync with a Consul.",
		"consul")
	tokensDesc         = desc("tokens", "Consul tokens of workloads' services in the ledger.")
	pluginDesc         = desc("plugin_running", "Whether a plugin is running.", "plugin")
	pluginRestartsDesc = desc("plugin_restarts_total", "Restarts of a plugin since the agent started.", "plugin")
	leaderDesc         = desc("ledger_leader", "Whether this agent leads the cluster.")
	nodesDesc          = desc("nodes", "Nodes in the ledger by status.", "status")
	oldestDesc         = desc("claim_release_stalled_seconds",
		"How long the claim that has waited longest for the next step of its release has done so; 0: none waits.")
	termDesc      = desc("ledger_term", "The ledger's term, which grows with each election.")
	toleranceDesc = desc("ledger_failure_tolerance",
		"How many more servers may fail before the ledger takes no changes; only the leader knows.")
	indexDesc = desc("ledger_applied_index", "Index of the last log entry in this agent's ledger.")
	sizeDesc  = desc("ledger_size_bytes", "Size of this agent's ledger on disk.")
)

// collectTimeout bounds reading the ledger for one scrape.
const collectTimeout = 5 * time.Second

// Collect reads the host's state for one scrape.
func (h *Handler) Collect(ctx context.Context, ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	counter := func(d *prometheus.Desc, value int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
	}
	for state, n := range h.workloads.Counts() {
		gauge(workloadsDesc, float64(n), state)
	}
	for reason, n := range h.waitingReleases() {
		gauge(releasesDesc, float64(n), reason)
	}
	counter(triesDesc, int(h.workloads.Workloads.FailedTries()))
	for _, d := range h.drivers.Drivers.List() {
		gauge(driverDesc, bit(d.Healthy), d.ID)
		counter(driverRestartsDesc, d.Restarts, d.ID)
		if c := d.Controller; c != nil {
			gauge(driverDesc, bit(c.Healthy), d.ID+"/controller")
			counter(driverRestartsDesc, c.Restarts, d.ID+"/controller")
		}
	}
	for _, p := range h.plugins.Plugins.Status() {
		gauge(pluginDesc, bit(p.State == supervisor.Running), p.Name)
		counter(pluginRestartsDesc, p.Restarts, p.Name)
	}
	for consul, problem := range h.Services.Problems() {
		gauge(consulDesc, bit(problem == ""), consul)
	}
	if h.Ledger == nil {
		return
	}
	stats := h.Ledger.Stats()
	gauge(leaderDesc, bit(stats.Leader))
	gauge(termDesc, float64(stats.Term))
	gauge(indexDesc, float64(stats.AppliedIndex))
	gauge(sizeDesc, float64(h.Ledger.Size()))
	ctx, cancel := context.WithTimeout(ctx, collectTimeout)
	defer cancel()
	if stats.Leader && h.Raft != nil {
		if peers, err := h.Raft.Peers(ctx); err == nil {
			gauge(toleranceDesc, float64(operator.FailureTolerance(peers)))
		}
	}
	n, err := countLedger(ctx, h.Ledger)
	switch {
	case errors.Is(err, context.DeadlineExceeded): // the ledger is not ready yet
	case err != nil:
		ch <- prometheus.NewInvalidMetric(volumesDesc, err)
	default:
		gauge(volumesDesc, float64(n.volumes))
		gauge(tokensDesc, float64(n.tokens))
		for state, n := range n.claims {
			gauge(claimsDesc, float64(n), string(state))
		}
		for status, n := range n.nodes {
			gauge(nodesDesc, float64(n), string(status))
		}
		stalled := 0.0
		if !n.stalled.IsZero() {
			stalled = max(time.Since(n.stalled).Seconds(), 0)
		}
		gauge(oldestDesc, stalled)
	}
}

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// ledgerCounts are the numbers of objects in the ledger.
type ledgerCounts struct {
	volumes int
	tokens  int
	claims  map[claim.State]int // for every state
	nodes   map[claim.NodeStatus]int
	stalled time.Time // when the claim whose release has waited longest made its last step; zero: none waits
}

func (c ledgerCounts) total() (all, releasing int) {
	for state, n := range c.claims {
		all += n
		if state.Releasing() {
			releasing += n
		}
	}
	return all, releasing
}

// countLedger reads the counts.
func countLedger(ctx context.Context, ledger Ledger) (ledgerCounts, error) {
	now := ledgerCounts{claims: map[claim.State]int{}, nodes: map[claim.NodeStatus]int{
		claim.NodeReady: 0, claim.NodeDisconnected: 0, claim.NodeDown: 0,
	}}
	for _, s := range claim.States {
		if s != claim.Freed {
			now.claims[s] = 0
		}
	}
	err := ledger.Read(ctx, func(tx *state.ReadTx) error {
		all, err := tx.Totals()
		if err != nil {
			return err
		}
		now.volumes, now.tokens = all.Volumes, all.Tokens
		releasing, _, err := tx.Releasing(state.Page{}) // all others are taken
		if err != nil {
			return err
		}
		now.claims[claim.Taken] = all.Claims - len(releasing)
		for _, c := range releasing {
			now.claims[c.State]++
			if now.stalled.IsZero() || c.ModifiedAt.Before(now.stalled) {
				now.stalled = c.ModifiedAt
			}
		}
		nodes, err := tx.Nodes()
		if err != nil {
			return err
		}
		for _, n := range nodes {
			now.nodes[cmp.Or(n.Status, claim.NodeReady)]++
		}
		return nil
	})
	return now, err
}

// waitingReleases counts the releases of this node's workloads that have to wait, for every reason.
func (h *Handler) waitingReleases() map[string]int {
	n := map[string]int{}
	for _, reason := range workload.ReleaseReasons() {
		n[reason] = 0
	}
	for _, w := range h.workloads.Workloads.List() {
		if w.Release.Tries > 0 {
			n[w.Release.Reason]++
		}
	}
	return n
}
