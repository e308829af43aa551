package agentapi

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/apiserver/operator"
	csidrivers "github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/host/internal/workload"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
)

// collectTimeout bounds reading the ledger for one scrape.
const collectTimeout = 5 * time.Second

// Collect reads the host's state for one scrape.
func (h *Handler) Collect(ctx context.Context, ch chan<- prometheus.Metric) {
	send := func(kind prometheus.ValueType, name, help string, value float64, label ...string) {
		var names, values []string
		if len(label) > 0 {
			names, values = label[:1], label[1:]
		}
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc("pannier_"+name, help, names, nil), kind, value, values...)
	}
	gauge := func(name, help string, value float64, label ...string) {
		send(prometheus.GaugeValue, name, help, value, label...)
	}
	counter := func(name, help string, value int, label ...string) {
		send(prometheus.CounterValue, name, help, float64(value), label...)
	}
	for state, n := range h.workloads.Counts() {
		gauge("workloads", "Workloads of this node by state; ended ones are forgotten after a while.",
			float64(n), "state", state)
	}
	waiting, proxies, restarts := map[string]int{}, map[servicesteps.ProxyState]int{}, 0
	for _, w := range h.workloads.Workloads.List() {
		if w.Release.Tries > 0 {
			waiting[w.Release.Reason]++
		}
		for _, s := range w.Services {
			proxies[s.Proxy.State]++
			restarts += s.Proxy.Restarts
		}
	}
	for _, reason := range workload.ReleaseReasons() {
		gauge("workload_releases_waiting",
			"Workloads of this node whose release failed at least once and is tried again, by why the last try failed.",
			float64(waiting[reason]), "reason", reason)
	}
	counter("workload_release_failed_tries_total",
		"Tries to release a workload of this node that failed, since the agent started.",
		int(h.workloads.Workloads.FailedTries()))
	for _, state := range servicesteps.ProxyStates() {
		gauge("proxies", "Proxies of this node's services by state, of those that report whether they are ready.",
			float64(proxies[state]), "state", string(state))
	}
	gauge("proxy_restarts", "Restarts of the proxies of this node's workloads by pannier workload run.", float64(restarts))
	driver := func(id string, d csidrivers.Driver) {
		gauge("driver_healthy", "Whether a CSI driver of this node is healthy.", bit(d.Healthy), "driver", id)
		counter("driver_restarts_total", "Restarts of a CSI driver that the agent runs, since the agent started.",
			d.Restarts, "driver", id)
	}
	for _, d := range h.drivers.Drivers.List() {
		driver(d.ID, d)
		if d.Controller != nil {
			driver(d.ID+"/controller", *d.Controller)
		}
	}
	for _, p := range h.plugins.Plugins.Status() {
		gauge("plugin_running", "Whether a plugin is running.", bit(p.State == supervisor.Running), "plugin", p.Name)
		counter("plugin_restarts_total", "Restarts of a plugin since the agent started.", p.Restarts, "plugin", p.Name)
	}
	for consul, problem := range h.Services.Problems() {
		gauge("consul_in_sync", "Whether the services of this node's workloads are in sync with a Consul.",
			bit(problem == ""), "consul", consul)
	}
	if h.Ledger == nil {
		return
	}
	stats := h.Ledger.Stats()
	gauge("ledger_leader", "Whether this agent leads the cluster.", bit(stats.Leader))
	gauge("ledger_term", "The ledger's term, which grows with each election.", float64(stats.Term))
	gauge("ledger_applied_index", "Index of the last log entry in this agent's ledger.", float64(stats.AppliedIndex))
	gauge("ledger_size_bytes", "Size of this agent's ledger on disk.", float64(h.Ledger.Size()))
	gauge("ledger_unwritten_seconds", "Age of the oldest log entry that waits for this agent's disk; 0: none does.",
		stats.Unwritten.Seconds())
	ctx, cancel := context.WithTimeout(ctx, collectTimeout)
	defer cancel()
	if stats.Leader {
		if peers, err := h.Ledger.Peers(ctx); err == nil {
			gauge("ledger_failure_tolerance",
				"How many more servers may fail before the ledger takes no changes; only the leader knows.",
				float64(operator.FailureTolerance(peers)))
		}
	}
	n, err := countLedger(ctx, h.Ledger)
	switch {
	case errors.Is(err, context.DeadlineExceeded): // the ledger is not ready yet
	case err != nil:
		ch <- prometheus.NewInvalidMetric(prometheus.NewDesc("pannier_volumes", "Registered volumes.", nil, nil), err)
	default:
		gauge("volumes", "Registered volumes.", float64(n.volumes))
		gauge("tokens", "Consul tokens of workloads' services in the ledger.", float64(n.tokens))
		for state, n := range n.claims {
			gauge("claims", "Claims in the ledger by state.", float64(n), "state", string(state))
		}
		for status, n := range n.nodes {
			gauge("nodes", "Nodes in the ledger by status.", float64(n), "status", string(status))
		}
		stalled := 0.0
		if !n.stalled.IsZero() {
			stalled = max(time.Since(n.stalled).Seconds(), 0)
		}
		gauge("claim_release_stalled_seconds",
			"How long the claim that has waited longest for the next step of its release has done so; 0: none waits.",
			stalled)
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
func countLedger(ctx context.Context, ledger *cluster.Node) (ledgerCounts, error) {
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
