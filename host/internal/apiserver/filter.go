package apiserver

import (
	"context"
	"slices"
	"strings"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/apiserver/acl"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/system/events"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// filter removes what its caller may not see from an answer, and reports whether anything is left to send. Answers
// are made for one caller, so they may be changed.
//
// permissions.go refuses calls because of the object that they name; filter is for other objects in the answer.
func (s *Server) filter(ctx context.Context, c *call.Caller, request, answer any) (bool, error) {
	if c.IsManagement() {
		return true, nil
	}
	switch m := answer.(type) {
	case *hostv1.ListVolumesResponse:
		m.Volumes = keep(m.GetVolumes(), func(v *hostv1.Volume) bool { return c.Sees(v.GetSpec(), acl.CSIListVolume) })
	case *hostv1.ListWorkloadsResponse:
		m.Workloads = keep(m.GetWorkloads(), func(w *hostv1.Workload) bool { return c.Sees(w.GetSpec(), acl.ListWorkloads) })
	case *hostv1.ListTokensResponse:
		m.Tokens = keep(m.GetTokens(), func(t *hostv1.Token) bool { return c.Sees(t, acl.ReadWorkload) })
	case *hostv1.ListDevicesResponse:
		hideHolders(c, m.GetGroups())
	case *hostv1.StatusResponse:
		hideStatus(c, m)
	case *hostv1.GetDriverResponse:
		if c.May(acl.Agent, acl.Read) != nil { // drivers print about all namespaces
			for _, p := range []*hostv1.Driver{m.GetDriver(), m.GetDriver().GetController()} {
				if p != nil {
					p.LastOutput = nil
				}
			}
		}
	case *hostv1.GetNodeResponse:
		m.Workloads = keep(m.GetWorkloads(), func(w *hostv1.NodeWorkload) bool { return c.Sees(w, acl.ListWorkloads) })
		m.Claims = keep(m.GetClaims(), func(k *hostv1.Claim) bool { return c.Sees(k, acl.CSIReadVolume) })
	case *hostv1.ListExternalResponse:
		hidden, err := s.hidden(ctx, c, request)
		m.Volumes = keep(m.GetVolumes(), func(v *hostv1.ExternalVolume) bool { return !hidden(v.GetExternalId()) })
		return true, err
	case *hostv1.ListSnapshotsResponse:
		hidden, err := s.hidden(ctx, c, request)
		m.Snapshots = shownSnapshots(c, m.GetSnapshots(), hidden)
		return true, err
	case *hostv1.GetGroupSnapshotResponse:
		hidden, err := s.hidden(ctx, c, request)
		if g := m.GetGroup(); g != nil {
			g.Snapshots = shownSnapshots(c, g.GetSnapshots(), hidden)
		}
		return true, err
	case *hostv1.ListACLPoliciesResponse:
		m.Policies = keep(m.GetPolicies(), func(p *hostv1.ACLPolicy) bool { return c.Has(p.GetName()) })
	case *hostv1.EventsResponse:
		return seesEvent(c, m.GetEvent()), nil
	}
	return true, nil
}

// keep returns the elements of a list that sees accepts.
func keep[T any](list []T, sees func(T) bool) []T {
	return slices.DeleteFunc(list, func(one T) bool { return !sees(one) })
}

// hideHolders removes the names of workloads that have devices. It stays visible that the devices are taken.
func hideHolders(c *call.Caller, groups []*hostv1.DeviceGroup) {
	const hidden = "(not yours to see)"
	for _, g := range groups {
		for _, d := range g.GetDevices() {
			if d.GetWorkload() != "" && !c.Sees(d, acl.ListWorkloads) {
				d.Workload, d.Namespace = hidden, ""
			}
		}
	}
}

// shownSnapshots removes snapshots of namespaces where the caller may not list. Whose a snapshot is the ledger knows by
// its name, whatever has become of its volume; one without a name is its volume's.
func shownSnapshots(c *call.Caller, all []*hostv1.Snapshot, hidden func(volume string) bool) []*hostv1.Snapshot {
	return keep(all, func(p *hostv1.Snapshot) bool {
		if !c.AllowNamespace(namespaceIn(p.GetVolume()), acl.CSIListVolume) {
			p.Volume = "" // of somebody who has registered the volume since
		}
		if p.GetName() == "" {
			return !hidden(p.GetExternalVolumeId())
		}
		return c.AllowNamespace(namespaceIn(p.GetName()), acl.CSIListVolume)
	})
}

func hideStatus(c *call.Caller, m *hostv1.StatusResponse) {
	if !c.Allow(acl.Plugin, acl.List) {
		m.Plugins, m.Drivers = nil, nil
	}
	if !c.Allow(acl.Node, acl.Read) {
		m.Devices = nil
	}
	hideHolders(c, m.GetDevices())
	if !c.Allow(acl.Operator, acl.Read) {
		m.Leftovers = nil // the paths contain names of volumes and workloads
	}
}

// seesEvent reports whether the caller may see an event.
func seesEvent(c *call.Caller, e *hostv1.Event) bool {
	switch e.GetTopic() {
	case events.TopicWorkload:
		return c.AllowNamespace(namespaceIn(e.GetSubject()), acl.ReadWorkload)
	case events.TopicService:
		if workload := e.GetDetails()["workload"]; workload != "" {
			return c.AllowNamespace(namespaceIn(workload), acl.ReadWorkload)
		}
		return c.Allow(acl.Agent, acl.Read) // about Consul as a whole
	case events.TopicVolume, events.TopicClaim:
		return c.AllowNamespace(namespaceIn(e.GetSubject()), acl.CSIReadVolume)
	case events.TopicDriver, events.TopicPlugin:
		return c.Allow(acl.Plugin, acl.Read)
	case events.TopicSnapshot: // it has no namespace, its volume has one
		volume := e.GetDetails()["volume"]
		return c.Allow(acl.Plugin, acl.Read) &&
			(volume == "" || c.AllowNamespace(namespaceIn(volume), acl.CSIReadVolume))
	case events.TopicDevice:
		return c.Allow(acl.Node, acl.Read)
	default:
		return e.GetType() == events.TypeLagged || c.Allow(acl.Agent, acl.Read)
	}
}

// namespaceIn returns the namespace of an id as messages show it (claim.VolumeRef.String).
func namespaceIn(qualified string) string {
	if namespace, _, ok := strings.Cut(qualified, "/"); ok {
		return namespace
	}
	return claim.DefaultNamespace
}

// hidden says by their external ids which volumes of the request's driver are registered in namespaces where the caller
// may not list; with an error, all. Volumes that nobody has registered stay visible, so that they can be registered.
func (s *Server) hidden(ctx context.Context, c *call.Caller, request any) (func(id string) bool, error) {
	ids := map[string]bool{}
	of, _ := request.(interface{ GetPluginId() string })
	err := s.cfg.Ledger.Read(ctx, func(tx *state.ReadTx) error {
		volumes, _, err := tx.Volumes(state.VolumeQuery{Driver: of.GetPluginId()})
		for _, v := range volumes {
			if !c.AllowNamespace(v.Namespace, acl.CSIListVolume) {
				ids[v.ExternalID] = true
			}
		}
		return err
	})
	return func(id string) bool { return err != nil || ids[id] }, err
}
