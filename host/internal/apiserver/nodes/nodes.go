package nodes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/peer/route"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/host/internal/workload"
	"github.com/pannier/pannier/internal/errcode"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// Handler serves pannier.host.v1.NodeService, MemberService and ClusterService.
type Handler struct {
	Name, Version, Datacenter string // of this agent
	Log                       hclog.Logger
	Ledger                    *cluster.Node // nil: this agent is no server
	// Discovery is nil on a host in no cluster.
	Discovery Discovery
	// TLS is nil on a host in no cluster.
	TLS *pki.Files
	// Leader finds the leader; nil: this host is in no cluster.
	Leader *route.Router
	// Heard returns when a node's last heartbeat was answered, and until when its claims are kept without another one;
	// zero: not known. It is nil where there are no heartbeats.
	Heard func(node string) (at, keepsTo time.Time)
	// Workloads are this node's workloads.
	Workloads interface{ List() []workload.Workload }
	// Services forget what a node that is gone for good has left in the Consuls of this one.
	Services interface {
		Forget(ctx context.Context, node string) error
	}
	// Stop begins to stop the agent.
	Stop func()
}

// Discovery is this agent's gossip (discovery.Discovery).
type Discovery interface {
	Members() []discovery.Member
	Member(name string) (discovery.Member, bool)
	Join(addresses ...string) (int, error)
	ForceLeave(name string, prune bool) error
	Leave() error
	ListKeys() (discovery.Keys, error)
	InstallKey(key string) (discovery.Keys, error)
	UseKey(key string) (discovery.Keys, error)
	RemoveKey(key string) (discovery.Keys, error)
}

// heard is Heard, or zero if there are no heartbeats.
func (h *Handler) heard(node string) (at, keepsTo time.Time) {
	if h.Heard == nil {
		return at, keepsTo
	}
	return h.Heard(node)
}

// ListNodes lists all nodes that the ledger knows.
func (h *Handler) ListNodes(ctx context.Context, req *hostv1.ListNodesRequest) (*hostv1.ListNodesResponse, error) {
	resp := &hostv1.ListNodesResponse{}
	var err error
	resp.Meta, err = call.Read(ctx, h.Ledger, req, []state.Topic{state.TopicNodes}, func(tx *state.ReadTx) error {
		all, err := tx.Nodes()
		members := h.members()
		for _, n := range all {
			resp.Nodes = append(resp.Nodes, h.shownNode(n, members))
		}
		return err
	})
	return resp, err
}

// GetNode reads a node with its workloads and claims.
func (h *Handler) GetNode(ctx context.Context, req *hostv1.GetNodeRequest) (*hostv1.GetNodeResponse, error) {
	name := req.GetName()
	if err := claim.CheckID(name); err != nil {
		return nil, call.Invalid("node", "name", err.Error())
	}
	resp := &hostv1.GetNodeResponse{}
	var err error
	resp.Meta, err = call.Read(ctx, h.Ledger, req, []state.Topic{state.TopicNode(name), state.TopicOnNode(name)},
		func(tx *state.ReadTx) error {
			n, err := tx.Node(name)
			if err != nil {
				return err
			}
			claims, err := tx.ClaimsOn(name)
			if err != nil {
				return err
			}
			workloads, err := tx.WorkloadsOn(name)
			resp.Node, resp.Claims = h.shownNode(n, h.members()), call.Each(claims, call.ShownClaim)
			for _, w := range workloads {
				resp.Workloads = append(resp.Workloads, &hostv1.NodeWorkload{
					Namespace: w.Ref.Namespace, Id: w.Ref.ID, Status: string(w.Status), After: refs(w.After),
					CreatedAt: call.Time(w.CreatedAt),
				})
			}
			return err
		})
	return resp, err
}

// DrainNode begins or ends a drain. Both may be repeated.
func (h *Handler) DrainNode(ctx context.Context, req *hostv1.DrainNodeRequest) (*hostv1.DrainNodeResponse, error) {
	enable := req.GetEnable()
	duty := command.SetNodeDuty{StopDrain: !enable}
	if enable {
		duty.Drain = &claim.Drain{StartedAt: time.Now().UTC(), By: call.CallerOf(ctx).Who()}
	}
	shown, err := h.setDuty(ctx, req.GetName(), duty, func(n claim.Node) bool { return enable == (n.Drain != nil) })
	return &hostv1.DrainNodeResponse{Node: shown}, err
}

// setDuty changes what a node may and must do, unless it has that duty.
func (h *Handler) setDuty(ctx context.Context, name string, duty command.SetNodeDuty, has func(claim.Node) bool,
) (*hostv1.Node, error) {
	n, err := h.node(ctx, name)
	if err != nil {
		return nil, err
	}
	if duty.Name = name; !has(n) {
		n, err = cluster.Apply(ctx, h.Ledger, &duty)
	}
	return h.shownNode(n, h.members()), err
}

// SetNodeEligibility sets whether a node may start workloads.
func (h *Handler) SetNodeEligibility(ctx context.Context,
	req *hostv1.SetNodeEligibilityRequest,
) (*hostv1.SetNodeEligibilityResponse, error) {
	ineligible := !req.GetEligible()
	shown, err := h.setDuty(ctx, req.GetName(), command.SetNodeDuty{Ineligible: &ineligible},
		func(n claim.Node) bool { return ineligible == n.Ineligible })
	return &hostv1.SetNodeEligibilityResponse{Node: shown}, err
}

// SetNodeNamespaces binds a node to namespaces, or to none.
func (h *Handler) SetNodeNamespaces(ctx context.Context,
	req *hostv1.SetNodeNamespacesRequest,
) (*hostv1.SetNodeNamespacesResponse, error) {
	bound := append([]string{}, req.GetNamespaces()...) // not nil: the command would leave them as they are
	slices.Sort(bound)
	bound = slices.Compact(bound)
	shown, err := h.setDuty(ctx, req.GetName(), command.SetNodeDuty{Namespaces: &bound},
		func(n claim.Node) bool { return slices.Equal(bound, n.Namespaces) })
	return &hostv1.SetNodeNamespacesResponse{Node: shown}, err
}

// ApproveDriver lets the controller of a driver on a node have secrets, or ends that.
func (h *Handler) ApproveDriver(ctx context.Context,
	req *hostv1.ApproveDriverRequest,
) (*hostv1.ApproveDriverResponse, error) {
	id := req.GetDriverId()
	if err := claim.CheckID(id); err != nil {
		return nil, call.Invalid(fmt.Sprintf("node %q", req.GetName()), "driver_id", err.Error())
	}
	duty := command.SetNodeDuty{Approve: id}
	if req.GetRevoke() {
		duty = command.SetNodeDuty{Revoke: id}
	}
	shown, err := h.setDuty(ctx, req.GetName(), duty,
		func(n claim.Node) bool { return slices.Contains(n.ControllerOf, id) != req.GetRevoke() })
	return &hostv1.ApproveDriverResponse{Node: shown}, err
}

// purgeWait bounds how long a forced purge waits for the release of the node's claims.
const purgeWait = 20 * time.Second

// ErrNodeUp is returned for a node that would register again at once.
var ErrNodeUp = errcode.FailedPrecondition.New("the node is up")

// PurgeNode forgets a node.
func (h *Handler) PurgeNode(ctx context.Context, req *hostv1.PurgeNodeRequest) (*hostv1.PurgeNodeResponse, error) {
	node, err := h.node(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	if why := h.up(node); why != "" {
		return nil, fmt.Errorf(
			"purge node %q: %w: %s; empty it (pannier node drain -enable -wait %s), then stop its agent and wait until it is down",
			node.Name, ErrNodeUp, why, node.Name)
	}
	resp := &hostv1.PurgeNodeResponse{}
	if req.GetForce() {
		by := call.CallerOf(ctx).Who()
		result, err := cluster.SetNodeStatus(ctx, h.Ledger, node.Name, claim.NodeDown, by)
		if err != nil {
			return nil, err
		}
		h.Log.Warn("a node was purged by force", "node", node.Name, "by", by, "workloads", len(result.Ended), "claims",
			len(result.Freed))
		node, resp.Ended, resp.LetGo = result.Node, refs(result.Ended), call.Each(result.Freed, call.ShownClaim)
	}
	if node.Status == claim.NodeDown { // its workloads have ended
		err := h.Services.Forget(ctx, node.Name)
		switch {
		case err != nil && !req.GetForce():
			return nil, fmt.Errorf("purge node %q: what it has left in Consul cannot be removed: %w; purge it again when Consul "+
				"answers, or leave that there: pannier node purge -force %s", node.Name, err, node.Name)
		case err != nil:
			resp.Left = err.Error()
		}
	}
	if err := h.deleteNode(ctx, node, req.GetForce()); err != nil {
		return nil, err
	}
	return resp, nil
}

// deleteNode removes a node's record. With wait it waits until the claims that it released are freed.
func (h *Handler) deleteNode(ctx context.Context, n claim.Node, wait bool) error {
	name := n.Name
	waiting, over := context.WithTimeout(ctx, purgeWait)
	defer over()
	for {
		changed := h.Ledger.Watch(waiting, state.TopicOnNode(name))
		err := h.deleteIdle(ctx, n)
		switch {
		case !errors.Is(err, claim.ErrNodeInUse):
			return err
		case !wait:
			return fmt.Errorf("%w; when it is down for good: pannier node purge -force %s", err, name)
		case waiting.Err() != nil:
			return fmt.Errorf(
				"node %q is down in the ledger, and its claims are being released: %w; purge it again to finish (pannier node status %s shows what is left)",
				name, err, name)
		}
		<-changed // closed also when waiting ends
	}
}

// deleteIdle removes the record of a node without workloads or claims. A node that was down and has come back since
// is kept.
func (h *Handler) deleteIdle(ctx context.Context, n claim.Node) error {
	if n.Status != claim.NodeDown {
		_, err := cluster.Apply(ctx, h.Ledger, &command.DeleteNode{Name: n.Name})
		return err
	}
	result, err := cluster.Apply(ctx, h.Ledger, &command.DeleteNode{Name: n.Name, IfDown: n.StatusIndex})
	if err != nil || result.Found {
		return err
	}
	if _, err := h.node(ctx, n.Name); !errors.Is(err, claim.ErrNodeNotFound) {
		return errors.Join(err, fmt.Errorf("purge node %q: %w: it has come back meanwhile", n.Name, ErrNodeUp))
	}
	return nil
}

// up explains why a node counts as up; "" if it does not.
func (h *Handler) up(n claim.Node) string {
	switch {
	case n.Name == h.Name:
		return "it is the one that answers"
	case h.Heard == nil: // this host is in no cluster, so no other node is up
		return ""
	case n.Status == "" || n.Status == claim.NodeReady:
		at, _ := h.heard(n.Name)
		if at.IsZero() {
			return "it was heard from before this server came to lead"
		}
		return fmt.Sprintf("it was heard from %s ago", time.Since(at).Round(time.Second))
	}
	return ""
}

// node reads one node as the ledger has it.
func (h *Handler) node(ctx context.Context, name string) (n claim.Node, err error) {
	if err := claim.CheckID(name); err != nil {
		return n, call.Invalid("node", "name", err.Error())
	}
	return call.Latest(ctx, h.Ledger, func(tx *state.ReadTx) (claim.Node, error) { return tx.Node(name) })
}

// members returns the agents that gossip knows, by name.
func (h *Handler) members() map[string]discovery.Member {
	members := map[string]discovery.Member{}
	if h.Discovery != nil {
		for _, m := range h.Discovery.Members() {
			members[m.Name] = m
		}
	}
	return members
}

func (h *Handler) shownNode(n claim.Node, members map[string]discovery.Member) *hostv1.Node {
	shown := &hostv1.Node{
		Name: n.Name, Status: string(call.NodeStatus(n)), StatusAt: call.Time(n.StatusAt), Eligible: !n.Ineligible,
		Attributes: maps.Clone(n.Attributes), BootId: n.BootID, Namespaces: n.Namespaces,
		ControllerOf: n.ControllerOf,
		CreateIndex:  n.CreateIndex, ModifyIndex: n.ModifyIndex, ModifiedAt: call.Time(n.ModifiedAt),
	}
	if d := n.Drain; d != nil {
		shown.Drain = &hostv1.NodeDrain{StartedAt: call.Time(d.StartedAt), By: d.By, DoneAt: call.Time(d.DoneAt)}
	}
	for _, id := range slices.Sorted(maps.Keys(n.Drivers)) {
		d := n.Seen(n.Drivers[id])
		if c := d.ControllerApart; c != nil && !c.Healthy {
			d.Message = strings.TrimPrefix(d.Message+"; its controller is unhealthy: "+c.Message, "; ")
		}
		shown.Drivers = append(shown.Drivers, &hostv1.NodeDriver{
			Id: d.ID, Type: string(
				d.Type), Healthy: d.Healthy, Message: d.Message, Provider: d.Provider, ProviderVersion: d.Version,
			NodeId: d.NodeID, MaxVolumes: d.MaxVolumes, Topology: maps.Clone(d.Topology), Controller: d.Controller != nil,
		})
	}
	for _, d := range n.Devices {
		shown.Devices = append(shown.Devices, &hostv1.NodeDevices{
			Plugin: d.Plugin, Vendor: d.Vendor, Type: d.Type, Name: d.Name, Total: int64(d.Total), Healthy: int64(d.Healthy),
		})
	}
	if m, ok := members[n.Name]; ok {
		shown.Address, shown.Version, shown.Server = m.RPC, m.Version, m.Role == discovery.Server
	}
	at, keepsTo := h.heard(n.Name)
	shown.LastHeard, shown.LetGoAt = call.Time(at), call.Time(keepsTo)
	return shown
}

// refs names workloads as messages do.
func refs(of []claim.WorkloadRef) []string {
	return call.Each(of, func(w claim.WorkloadRef) string { return strings.TrimPrefix(w.Namespace+"/"+w.ID, "/") })
}
