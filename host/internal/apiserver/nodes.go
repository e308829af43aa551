package apiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/internal/errcode"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// heard is Config.Heard, or zero if there are no heartbeats.
func (s *Server) heard(node string) (at, keepsTo time.Time) {
	if s.cfg.Heard == nil {
		return at, keepsTo
	}
	return s.cfg.Heard(node)
}

// nodeService serves pannier.host.v1.NodeService.
type nodeService struct{ *Server }

// ListNodes lists all nodes that the ledger knows.
func (s nodeService) ListNodes(ctx context.Context, req *hostv1.ListNodesRequest) (*hostv1.ListNodesResponse, error) {
	resp := &hostv1.ListNodesResponse{}
	var err error
	resp.Meta, err = call.Read(ctx, s.cfg.Ledger, req, []state.Topic{state.TopicNodes}, func(tx *state.ReadTx) error {
		all, err := tx.Nodes()
		members := s.members()
		for _, n := range all {
			resp.Nodes = append(resp.Nodes, s.shownNode(n, members))
		}
		return err
	})
	return resp, err
}

// GetNode reads a node with its workloads and claims.
func (s nodeService) GetNode(ctx context.Context, req *hostv1.GetNodeRequest) (*hostv1.GetNodeResponse, error) {
	name := req.GetName()
	if err := claim.CheckID(name); err != nil {
		return nil, call.Invalid("node", "name", err.Error())
	}
	resp := &hostv1.GetNodeResponse{}
	var err error
	resp.Meta, err = call.Read(ctx, s.cfg.Ledger, req, []state.Topic{state.TopicNode(name), state.TopicOnNode(name)},
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
			resp.Node, resp.Claims = s.shownNode(n, s.members()), call.Each(claims, call.ShownClaim)
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
func (s nodeService) DrainNode(ctx context.Context, req *hostv1.DrainNodeRequest) (*hostv1.DrainNodeResponse, error) {
	node, err := s.node(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	enable := req.GetEnable()
	duty := command.SetNodeDuty{Name: node.Name, StopDrain: !enable}
	if enable {
		duty.Drain = &claim.Drain{StartedAt: time.Now().UTC(), By: call.CallerOf(ctx).Who()}
	}
	shown, err := s.setDuty(ctx, node, enable != (node.Drain != nil), duty)
	return &hostv1.DrainNodeResponse{Node: shown}, err
}

// setDuty changes what a node may and must do, if that is another than it is.
func (s nodeService) setDuty(ctx context.Context, n claim.Node, another bool, duty command.SetNodeDuty) (_ *hostv1.Node,
	err error,
) {
	if another {
		n, err = s.cfg.Ledger.SetNodeDuty(ctx, duty)
	}
	return s.shownNode(n, s.members()), err
}

// SetNodeEligibility sets whether a node may start workloads.
func (s nodeService) SetNodeEligibility(ctx context.Context,
	req *hostv1.SetNodeEligibilityRequest,
) (*hostv1.SetNodeEligibilityResponse, error) {
	node, err := s.node(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	ineligible := !req.GetEligible()
	shown, err := s.setDuty(ctx, node, ineligible != node.Ineligible,
		command.SetNodeDuty{Name: node.Name, Ineligible: &ineligible})
	return &hostv1.SetNodeEligibilityResponse{Node: shown}, err
}

// SetNodeNamespaces binds a node to namespaces, or to none.
func (s nodeService) SetNodeNamespaces(ctx context.Context,
	req *hostv1.SetNodeNamespacesRequest,
) (*hostv1.SetNodeNamespacesResponse, error) {
	node, err := s.node(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	bound := append([]string{}, req.GetNamespaces()...) // not nil: the command would leave them as they are
	slices.Sort(bound)
	bound = slices.Compact(bound)
	shown, err := s.setDuty(ctx, node, !slices.Equal(bound, node.Namespaces),
		command.SetNodeDuty{Name: node.Name, Namespaces: &bound})
	return &hostv1.SetNodeNamespacesResponse{Node: shown}, err
}

// purgeWait bounds how long a forced purge waits for the release of the node's claims.
const purgeWait = 20 * time.Second

// errNodeUp is returned for a node that would register again at once.
var errNodeUp = errcode.FailedPrecondition.New("the node is up")

// PurgeNode forgets a node.
func (s nodeService) PurgeNode(ctx context.Context, req *hostv1.PurgeNodeRequest) (*hostv1.PurgeNodeResponse, error) {
	node, err := s.node(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	if why := s.up(node); why != "" {
		return nil, fmt.Errorf(
			"purge node %q: %w: %s; empty it (pannier node drain -enable -wait %s), then stop its agent and wait until it is down",
			node.Name, errNodeUp, why, node.Name)
	}
	resp := &hostv1.PurgeNodeResponse{}
	if req.GetForce() {
		by := call.CallerOf(ctx).Who()
		result, err := s.cfg.Ledger.SetNodeStatus(ctx, node.Name, claim.NodeDown, by)
		if err != nil {
			return nil, err
		}
		s.log.Warn("a node was purged by force", "node", node.Name, "by", by, "workloads", len(result.Ended), "claims",
			len(result.Freed))
		node, resp.Ended, resp.LetGo = result.Node, refs(result.Ended), call.Each(result.Freed, call.ShownClaim)
	}
	if node.Status == claim.NodeDown { // its workloads have ended
		err := s.cfg.Services.Forget(ctx, node.Name)
		switch {
		case err != nil && !req.GetForce():
			return nil, fmt.Errorf("purge node %q: what it has left in Consul cannot be removed: %w; purge it again when Consul "+
				"answers, or leave that there: pannier node purge -force %s", node.Name, err, node.Name)
		case err != nil:
			resp.Left = err.Error()
		}
	}
	if err := s.deleteNode(ctx, node, req.GetForce()); err != nil {
		return nil, err
	}
	return resp, nil
}

// deleteNode removes a node's record. With wait it waits until the claims that it released are freed.
func (s nodeService) deleteNode(ctx context.Context, n claim.Node, wait bool) error {
	name := n.Name
	waiting, over := context.WithTimeout(ctx, purgeWait)
	defer over()
	for {
		changed := s.cfg.Ledger.Watch(waiting, state.TopicOnNode(name))
		err := s.deleteIdle(ctx, n)
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
func (s nodeService) deleteIdle(ctx context.Context, n claim.Node) error {
	if n.Status != claim.NodeDown {
		_, err := s.cfg.Ledger.DeleteNode(ctx, n.Name)
		return err
	}
	result, err := s.cfg.Ledger.DeleteDownNode(ctx, n)
	if err != nil || result.Found {
		return err
	}
	if _, err := s.node(ctx, n.Name); !errors.Is(err, claim.ErrNodeNotFound) {
		return errors.Join(err, fmt.Errorf("purge node %q: %w: it has come back meanwhile", n.Name, errNodeUp))
	}
	return nil
}

// up says why a node counts as up; "" if it does not.
func (s nodeService) up(n claim.Node) string {
	switch {
	case n.Name == s.cfg.Name:
		return "it is the one that answers"
	case s.cfg.Heard == nil: // this host is in no cluster, so no other node is up
		return ""
	case n.Status == "" || n.Status == claim.NodeReady:
		at, _ := s.heard(n.Name)
		if at.IsZero() {
			return "it was heard from before this server came to lead"
		}
		return fmt.Sprintf("it was heard from %s ago", time.Since(at).Round(time.Second))
	}
	return ""
}

// node reads one node as the ledger has it.
func (s *Server) node(ctx context.Context, name string) (n claim.Node, err error) {
	if err := claim.CheckID(name); err != nil {
		return n, call.Invalid("node", "name", err.Error())
	}
	err = s.cfg.Ledger.ReadLatest(ctx, func(tx *state.ReadTx) error {
		n, err = tx.Node(name)
		return err
	})
	return n, err
}

// members returns the agents that gossip knows, by name.
func (s *Server) members() map[string]discovery.Member {
	members := map[string]discovery.Member{}
	if s.cfg.Discovery != nil {
		for _, m := range s.cfg.Discovery.Members() {
			members[m.Name] = m
		}
	}
	return members
}

func (s *Server) shownNode(n claim.Node, members map[string]discovery.Member) *hostv1.Node {
	shown := &hostv1.Node{
		Name: n.Name, Status: string(nodeStatus(n)), StatusAt: call.Time(n.StatusAt), Eligible: !n.Ineligible,
		Attributes: maps.Clone(n.Attributes), BootId: n.BootID, Namespaces: n.Namespaces,
		CreateIndex: n.CreateIndex, ModifyIndex: n.ModifyIndex, ModifiedAt: call.Time(n.ModifiedAt),
	}
	if d := n.Drain; d != nil {
		shown.Drain = &hostv1.NodeDrain{StartedAt: call.Time(d.StartedAt), By: d.By, DoneAt: call.Time(d.DoneAt)}
	}
	for _, id := range slices.Sorted(maps.Keys(n.Drivers)) {
		d := n.Drivers[id]
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
	at, keepsTo := s.heard(n.Name)
	shown.LastHeard, shown.LetGoAt = call.Time(at), call.Time(keepsTo)
	return shown
}

// nodeStatus returns a node's status. A host in no cluster has none: it is ready.
func nodeStatus(n claim.Node) claim.NodeStatus { return cmp.Or(n.Status, claim.NodeReady) }

// refs names workloads as messages do.
func refs(of []claim.WorkloadRef) []string {
	return call.Each(of, func(w claim.WorkloadRef) string { return strings.TrimPrefix(w.Namespace+"/"+w.ID, "/") })
}
