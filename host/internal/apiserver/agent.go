package apiserver

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/system/handover"
	"github.com/pannier/pannier/host/internal/workload"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// agentService serves pannier.host.v1.AgentService.
type agentService struct{ *Server }

// Status describes the whole host.
func (s agentService) Status(ctx context.Context, req *hostv1.StatusRequest) (*hostv1.StatusResponse, error) {
	if node := req.GetNode(); s.isOther(node) {
		return askNode(ctx, s.Server, req, node, nodePatience, nodeClients.Status)
	}
	reasons := s.cfg.Health()
	resp := &hostv1.StatusResponse{
		Name: s.cfg.Name, Version: s.cfg.Version, Datacenter: s.cfg.Datacenter,
		Pid: int64(os.Getpid()), StartedAt: call.Time(s.cfg.StartedAt),
		DataDir: s.cfg.DataDir, Socket: s.cfg.Socket, HttpAddress: s.httpAddress,
		Ready: len(reasons) == 0, Message: strings.Join(reasons, "; "),
		Plugins: s.shownPlugins(), Devices: s.shownDevices(), Leftovers: s.cfg.Leftovers(), Workloads: map[string]int64{},
		Releases: s.releases(), Upgrade: shownUpgrade(s.cfg.Upgraded()),
	}
	for state, n := range s.workloadCounts() {
		resp.Workloads[state] = int64(n)
	}
	var disk unix.Statfs_t
	err := unix.Statfs(s.cfg.DataDir, &disk)
	if err != nil {
		return nil, fmt.Errorf("look at the data directory's file system: %w", err)
	}
	resp.DataDirSize, resp.DataDirFree = disk.Blocks*uint64(disk.Bsize), disk.Bavail*uint64(disk.Bsize)
	if resp.Drivers, err = s.shownDrivers(ctx); err != nil {
		return nil, err
	}
	if !call.Here(s.cfg.Ledger) {
		return resp, nil
	}
	stats := s.cfg.Ledger.Stats()
	resp.Leader, resp.RaftIndex, resp.LedgerSize = stats.Leader, stats.AppliedIndex, s.cfg.Ledger.Size()
	n, err := countLedger(ctx, s.cfg.Ledger)
	if err != nil {
		return nil, err
	}
	claims, releasing := n.total()
	resp.Volumes, resp.Claims, resp.Releasing = int64(n.volumes), int64(claims), int64(releasing)
	resp.StalledSince = call.Time(n.stalled)
	return resp, nil
}

// Stop begins to stop the agent. The server keeps running until this call is answered.
func (s agentService) Stop(_ context.Context, req *hostv1.StopRequest) (*hostv1.StopResponse, error) {
	count := s.workloadCounts()
	there := count[string(workload.Starting)] + count[string(workload.Running)] + count[string(workload.Unknown)] +
		count[string(workload.Stopping)]
	ending := s.cfg.Stop(req.GetPlugins())
	return &hostv1.StopResponse{
		Pid: int64(os.Getpid()), PluginsStop: ending.Plugins, Workloads: int64(there), WorkloadsStop: ending.Workloads,
	}, nil
}

// Reload reads the agent's configuration again.
func (s agentService) Reload(ctx context.Context, _ *hostv1.ReloadRequest) (*hostv1.ReloadResponse, error) {
	done, err := s.cfg.Reload(ctx)
	if err != nil {
		return nil, err
	}
	resp := &hostv1.ReloadResponse{Restart: done.Restart}
	for _, c := range done.Changes {
		resp.Changes = append(resp.Changes, &hostv1.ConfigurationChange{
			Block: c.Block, Outcome: c.Outcome, Message: c.Message,
		})
	}
	return resp, nil
}

// Upgrade begins to replace the agent's program.
func (s agentService) Upgrade(ctx context.Context, _ *hostv1.UpgradeRequest) (*hostv1.UpgradeResponse, error) {
	o, err := s.cfg.Upgrade(ctx)
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
func (s agentService) Events(ctx context.Context, req *hostv1.EventsRequest,
	stream *connect.ServerStream[hostv1.EventsResponse],
) error {
	if s.isOther(req.GetNode()) {
		return s.askEvents(ctx, req, stream)
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
		for _, e := range s.cfg.Events.RecentOf(filter, recent) {
			if err := stream.Send(shownEvent(e)); err != nil {
				return err
			}
		}
		return nil
	}
	follow := s.cfg.Events.SubscribeTo(ctx, filter, recent)
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

// volumeEvent publishes what was done with a volume.
func (s *Server) volumeEvent(kind string, v claim.Volume) {
	s.cfg.Events.Publish(events.Event{
		Topic: events.TopicVolume, Type: kind, Subject: v.String(), Details: map[string]string{"driver": v.PluginID},
	})
}

// snapshotEvent publishes what was done with a driver's snapshot, or group of snapshots, by its id; of is the volume,
// or the volumes, if they are known.
func (s *Server) snapshotEvent(kind, driver, id, of string) {
	details := map[string]string{"driver": driver}
	if of != "" {
		details["volume"] = of
	}
	s.cfg.Events.Publish(events.Event{Topic: events.TopicSnapshot, Type: kind, Subject: id, Details: details})
}

func shownEvent(e events.Event) *hostv1.EventsResponse {
	return &hostv1.EventsResponse{Event: &hostv1.Event{
		Seq: e.Seq, Time: call.Time(
			e.Time), Topic: e.Topic, Type: e.Type, Subject: e.Subject, Message: e.Message, Details: maps.Clone(e.Details),
	}}
}
