package agentapi

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/host/internal/apiserver/asknode"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/apiserver/drivers"
	"github.com/pannier/pannier/host/internal/apiserver/plugins"
	"github.com/pannier/pannier/host/internal/apiserver/workloads"
	"github.com/pannier/pannier/host/internal/config/doctor"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/system/handover"
	"github.com/pannier/pannier/host/internal/workload"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// Handler serves pannier.host.v1.AgentService.
type Handler struct {
	Name, Version, Datacenter, DataDir, Socket string
	StartedAt                                  time.Time
	Bus                                        *events.Bus
	Metrics                                    *prometheus.Registry
	// Nodes answer for themselves.
	Nodes *asknode.Asker
	// Services says, by consul block, what keeps this node's services from being in sync; empty: nothing.
	Services interface{ Problems() map[string]string }
	// Ledger is nil on an agent that is no server.
	Ledger *cluster.Node
	// Health returns what is wrong with the agent; empty: it is ready. It is called often and must not block.
	Health func() (reasons []string)
	// Leftovers are mounts and directories that no record explains.
	Leftovers func() []string
	// End begins to stop the agent and returns. With plugins, the plugins and the drivers that the agent runs are
	// stopped too, whatever the configuration says. It returns whether they stop, and workloads before the agent.
	End func(plugins bool) (pluginsStop, workloadsStop bool)
	// ReadConfig reads the agent's configuration again, and takes over what of it can be.
	ReadConfig func(ctx context.Context) (*hostv1.ReloadResponse, error)
	// Patient is this machine with the agent's configuration, for Examine.
	Patient func() doctor.Patient
	// Diagnosis describes the agent, for Diagnose.
	Diagnosis func() (Diagnosis, error)
	// Follow writes what the agent logs, from a level, to a writer that does not block, until stop is called.
	Follow func(level hclog.Level, lines io.Writer) (stop func())
	// Replace begins to replace the agent's program, and returns once that is known to be usable. Upgraded returns how
	// the last attempt ended; nil: there was none.
	Replace  func(ctx context.Context) (handover.Outcome, error)
	Upgraded func() *handover.Outcome

	httpAddress  func() string
	client       func(secret string) *api.Client
	plugins      *plugins.Handler
	drivers      *drivers.Handler
	workloads    *workloads.Handler
	examinations *examinations
}

// SetServer tells a handler who serves it: where health and metrics are, clients whose calls are answered as if the
// caller in their context had made them, with the secret of its token, and the handlers whose objects Status has too.
func (h *Handler) SetServer(httpAddress func() string, client func(secret string) *api.Client, p *plugins.Handler,
	d *drivers.Handler, w *workloads.Handler,
) {
	h.httpAddress, h.client, h.plugins, h.drivers, h.workloads = httpAddress, client, p, d, w
	h.examinations = &examinations{turn: make(chan struct{}, 1), made: map[rights]*hostv1.ExamineResponse{}}
}

// Status describes the whole host.
func (h *Handler) Status(ctx context.Context, req *hostv1.StatusRequest) (*hostv1.StatusResponse, error) {
	if node := req.GetNode(); h.Nodes.IsOther(node) {
		return asknode.Ask(ctx, h.Nodes, req, node, 0, asknode.Clients.Status)
	}
	reasons := h.Health()
	resp := &hostv1.StatusResponse{
		Name: h.Name, Version: h.Version, Datacenter: h.Datacenter,
		Pid: int64(os.Getpid()), StartedAt: call.Time(h.StartedAt),
		DataDir: h.DataDir, Socket: h.Socket, HttpAddress: h.httpAddress(),
		Ready: len(reasons) == 0, Message: strings.Join(reasons, "; "),
		Plugins: h.plugins.Shown(), Devices: h.plugins.ShownDevices(), Leftovers: h.Leftovers(),
		Workloads: map[string]int64{}, Releases: h.workloads.Releases(), Upgrade: shownUpgrade(h.Upgraded()),
	}
	for state, n := range h.workloads.Counts() {
		resp.Workloads[state] = int64(n)
	}
	var disk unix.Statfs_t
	err := unix.Statfs(h.DataDir, &disk)
	if err != nil {
		return nil, fmt.Errorf("look at the data directory's file system: %w", err)
	}
	resp.DataDirSize, resp.DataDirFree = disk.Blocks*uint64(disk.Bsize), disk.Bavail*uint64(disk.Bsize)
	if resp.Drivers, err = h.drivers.Shown(ctx); err != nil {
		return nil, err
	}
	if h.Ledger == nil || !call.Here(h.Ledger) {
		return resp, nil
	}
	stats := h.Ledger.Stats()
	resp.Leader, resp.RaftIndex, resp.LedgerSize = stats.Leader, stats.AppliedIndex, h.Ledger.Size()
	n, err := countLedger(ctx, h.Ledger)
	if err != nil {
		return nil, err
	}
	claims, releasing := n.total()
	resp.Volumes, resp.Claims, resp.Releasing = int64(n.volumes), int64(claims), int64(releasing)
	resp.StalledSince = call.Time(n.stalled)
	return resp, nil
}

// Stop begins to stop the agent. The server keeps running until this call is answered.
func (h *Handler) Stop(_ context.Context, req *hostv1.StopRequest) (*hostv1.StopResponse, error) {
	count := h.workloads.Counts()
	there := count[string(workload.Starting)] + count[string(workload.Running)] + count[string(workload.Unknown)] +
		count[string(workload.Stopping)]
	plugins, workloads := h.End(req.GetPlugins())
	return &hostv1.StopResponse{
		Pid: int64(os.Getpid()), PluginsStop: plugins, Workloads: int64(there), WorkloadsStop: workloads,
	}, nil
}

// Reload reads the agent's configuration again.
func (h *Handler) Reload(ctx context.Context, _ *hostv1.ReloadRequest) (*hostv1.ReloadResponse, error) {
	return h.ReadConfig(ctx)
}

// Upgrade begins to replace the agent's program.
func (h *Handler) Upgrade(ctx context.Context, _ *hostv1.UpgradeRequest) (*hostv1.UpgradeResponse, error) {
	o, err := h.Replace(ctx)
	if err != nil {
		return nil, err
	}
	return &hostv1.UpgradeResponse{
		Attempt: o.Attempt, Pid: int64(os.Getpid()), From: o.From, To: o.To,
	}, nil
}

func shownUpgrade(o *handover.Outcome) *hostv1.AgentUpgrade {
	if o == nil {
		return nil
	}
	return &hostv1.AgentUpgrade{Attempt: o.Attempt, At: call.Time(o.At), From: o.From, To: o.To, Error: o.Error}
}

// Events streams the events of the host.
func (h *Handler) Events(ctx context.Context, req *hostv1.EventsRequest,
	stream *connect.ServerStream[hostv1.EventsResponse],
) error {
	if h.Nodes.IsOther(req.GetNode()) {
		return asknode.Stream(ctx, h.Nodes, req, req.GetNode(), stream, asknode.Clients.Events)
	}
	recent := int(req.GetRecent())
	if recent < 0 || recent > events.DefaultSize {
		return call.Invalid("events", "recent", fmt.Sprintf("must be 0 to %d", events.DefaultSize))
	}
	filter := events.Filter{Topics: req.GetTopics()}
	for _, topic := range filter.Topics {
		if !slices.Contains(events.Topics, topic) {
			return call.Invalid("events", "topics", fmt.Sprintf("%q is not one of %s", topic, strings.Join(events.Topics, ", ")))
		}
	}
	if since := req.GetSince(); since != nil {
		filter.Since = since.AsTime()
	}
	if !req.GetFollow() {
		for _, e := range h.Bus.RecentOf(filter, recent) {
			if err := stream.Send(shownEvent(e)); err != nil {
				return err
			}
		}
		return nil
	}
	follow := h.Bus.SubscribeTo(ctx, filter, recent)
	if err := stream.Send(nil); err != nil { // send the headers now: the first event may be far off
		return err
	}
	for e := range follow {
		if err := stream.Send(shownEvent(e)); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

func shownEvent(e events.Event) *hostv1.EventsResponse {
	return &hostv1.EventsResponse{Event: &hostv1.Event{
		Seq: e.Seq, Time: call.Time(
			e.Time), Topic: e.Topic, Type: e.Type, Subject: e.Subject, Message: e.Message, Details: maps.Clone(e.Details),
	}}
}

// Reloaded describes in one line what became of a configuration that was read again.
func Reloaded(r *hostv1.ReloadResponse) string {
	var all []string
	for _, c := range r.GetChanges() {
		all = append(all, strings.TrimSuffix(c.GetBlock()+": "+c.GetOutcome()+": "+c.GetMessage(), ": "))
	}
	if len(r.GetRestart()) > 0 {
		all = append(all, "needs a restart of the agent: "+strings.Join(r.GetRestart(), ", "))
	}
	return cmp.Or(strings.Join(all, "; "), "nothing has changed")
}
