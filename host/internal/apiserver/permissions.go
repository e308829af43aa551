package apiserver

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/apiserver/acl"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	v1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
)

// needs lists the permissions that each call needs while ACLs are on. filter.go removes from the answer what the
// caller may not see. Calls that are not listed need a management token.
//
// Permissions are checked before anything is looked up, so that a refusal does not reveal whether the object exists.
var needs = map[string]need{
	v1.VolumeServiceRegisterVolumeProcedure:      change(in(acl.CSIWriteVolume)),
	v1.VolumeServiceCreateVolumeProcedure:        change(in(acl.CSIWriteVolume)),
	v1.VolumeServiceCheckVolumeProcedure:         change(in(acl.CSIWriteVolume)),
	v1.VolumeServiceGetVolumeProcedure:           query(in(acl.CSIReadVolume)),
	v1.VolumeServiceListVolumesProcedure:         query(within(acl.CSIListVolume)),
	v1.VolumeServiceExplainVolumeProcedure:       query(in(acl.CSIReadVolume)),
	v1.VolumeServiceListExternalProcedure:        query(to(acl.Plugin, acl.Read)),
	v1.VolumeServiceDeregisterVolumeProcedure:    change(in(acl.CSIWriteVolume), forced(to(acl.Operator, acl.Write))),
	v1.VolumeServiceDeleteVolumeProcedure:        change(in(acl.CSIWriteVolume)),
	v1.VolumeServiceExpandVolumeProcedure:        change(in(acl.CSIWriteVolume)),
	v1.VolumeServiceModifyVolumeProcedure:        change(in(acl.CSIWriteVolume)),
	v1.VolumeServiceDetachVolumeProcedure:        change(in(acl.CSIWriteVolume), forced(to(acl.Operator, acl.Write))),
	v1.VolumeServiceCreateSnapshotProcedure:      change(in(acl.CSIWriteVolume)),
	v1.VolumeServiceDeleteSnapshotProcedure:      change(to(acl.Plugin, acl.Write)), // snapshots have no namespace
	v1.VolumeServiceListSnapshotsProcedure:       query(to(acl.Plugin, acl.Read)),
	v1.VolumeServiceCreateGroupSnapshotProcedure: change(in(acl.CSIWriteVolume)),
	v1.VolumeServiceGetGroupSnapshotProcedure:    query(to(acl.Plugin, acl.Read)),
	v1.VolumeServiceDeleteGroupSnapshotProcedure: change(to(acl.Plugin, acl.Write)), // they have no namespace either

	v1.WorkloadServiceStartWorkloadProcedure: change(in(acl.SubmitWorkload), mounting(in(acl.CSIMountVolume)), others,
		identities),
	v1.WorkloadServiceCheckWorkloadProcedure: query(in(acl.SubmitWorkload), mounting(in(acl.CSIMountVolume)), others,
		identities),
	v1.WorkloadServiceRunningWorkloadProcedure: change(in(acl.SubmitWorkload)),
	v1.WorkloadServiceLeaveWorkloadProcedure:   change(in(acl.SubmitWorkload)),
	v1.WorkloadServiceStopWorkloadProcedure:    change(in(acl.SubmitWorkload), forced(to(acl.Operator, acl.Write))),
	v1.WorkloadServiceGetWorkloadProcedure:     query(in(acl.ReadWorkload)),
	v1.WorkloadServiceListWorkloadsProcedure:   query(within(acl.ListWorkloads)),

	// A controller may be asked with the secrets of volumes of all namespaces.
	v1.DriverServiceRegisterDriverProcedure:   change(to(acl.Plugin, acl.Write), controller(to(acl.Operator, acl.Write))),
	v1.DriverServiceDeregisterDriverProcedure: change(to(acl.Plugin, acl.Write)),
	v1.DriverServiceRestartDriverProcedure:    change(to(acl.Plugin, acl.Write), forced(to(acl.Operator, acl.Write))),
	v1.DriverServiceListDriversProcedure:      query(to(acl.Plugin, acl.List)),
	v1.DriverServiceGetDriverProcedure:        query(to(acl.Plugin, acl.Read)),
	v1.DriverServiceDriverLogProcedure:        query(to(acl.Agent, acl.Read)), // the log is about all namespaces

	v1.DeviceServiceListDevicesProcedure: query(to(acl.Node, acl.Read)),
	v1.DeviceServiceDeviceStatsProcedure: query(to(acl.Node, acl.Read)),

	v1.PluginServiceListPluginsProcedure:    query(to(acl.Plugin, acl.List)),
	v1.PluginServiceSwapPluginProcedure:     change(to(acl.Plugin, acl.Write)),
	v1.PluginServiceRestartPluginProcedure:  change(to(acl.Plugin, acl.Write)),
	v1.PluginServicePromotePluginProcedure:  change(to(acl.Plugin, acl.Write)),
	v1.PluginServiceRollbackPluginProcedure: change(to(acl.Plugin, acl.Write)),
	v1.PluginServicePinPluginProcedure:      change(to(acl.Plugin, acl.Write)),
	v1.PluginServiceUnpinPluginProcedure:    change(to(acl.Plugin, acl.Write)),
	v1.PluginServiceRemovePluginProcedure:   change(to(acl.Plugin, acl.Write)),
	v1.PluginServiceVerifyPluginProcedure:   change(to(acl.Plugin, acl.Write)),
	v1.PluginServicePluginLogProcedure:      query(to(acl.Agent, acl.Read)), // the log is about all namespaces

	v1.TokenServiceListTokensProcedure:  query(within(acl.ReadWorkload)),
	v1.TokenServiceSweepTokensProcedure: change(to(acl.Operator, acl.Write)),

	v1.AgentServiceStatusProcedure:  query(to(acl.Agent, acl.Read)),
	v1.AgentServiceEventsProcedure:  query(), // filter checks each event
	v1.AgentServiceStopProcedure:    change(to(acl.Agent, acl.Write)),
	v1.AgentServiceReloadProcedure:  change(to(acl.Agent, acl.Write)),
	v1.AgentServiceUpgradeProcedure: change(to(acl.Agent, acl.Write)),
	// Stacks and logs are about all namespaces, and profiling costs time.
	v1.AgentServiceDiagnoseProcedure: change(to(acl.Agent, acl.Write)),
	v1.AgentServiceMonitorProcedure:  query(to(acl.Agent, acl.Read)), // the log is about all namespaces
	v1.AgentServiceExamineProcedure:  query(to(acl.Agent, acl.Read)), // its calls need what they need

	v1.NodeServiceListNodesProcedure:          query(to(acl.Node, acl.Read)),
	v1.NodeServiceGetNodeProcedure:            query(to(acl.Node, acl.Read)),
	v1.NodeServiceDrainNodeProcedure:          change(to(acl.Node, acl.Write)),
	v1.NodeServiceSetNodeEligibilityProcedure: change(to(acl.Node, acl.Write)),
	v1.NodeServiceSetNodeNamespacesProcedure:  change(to(acl.Node, acl.Write)),
	v1.NodeServiceApproveDriverProcedure:      change(to(acl.Operator, acl.Write)),
	v1.NodeServicePurgeNodeProcedure:          change(to(acl.Node, acl.Write), forced(to(acl.Operator, acl.Write))),

	v1.MemberServiceListMembersProcedure: query(to(acl.Node, acl.Read)),
	v1.MemberServiceJoinMembersProcedure: change(to(acl.Agent, acl.Write)),
	v1.MemberServiceForceLeaveProcedure:  change(to(acl.Operator, acl.Write)),
	v1.MemberServiceLeaveProcedure:       change(to(acl.Agent, acl.Write)),
	v1.MemberServiceListKeysProcedure:    query(to(acl.Operator, acl.Write)),
	v1.MemberServiceAddKeyProcedure:      change(to(acl.Operator, acl.Write)),
	v1.MemberServiceUseKeyProcedure:      change(to(acl.Operator, acl.Write)),
	v1.MemberServiceRemoveKeyProcedure:   change(to(acl.Operator, acl.Write)),

	// Package nodes checks who gets a certificate. That of the authority is public.
	v1.ClusterServiceGetAuthorityProcedure:    {checksCaller: true},
	v1.ClusterServiceSignCertificateProcedure: {changes: true, checksCaller: true},

	v1.OperatorServiceListPeersProcedure:          query(to(acl.Operator, acl.Read)),
	v1.OperatorServiceTransferLeadershipProcedure: change(to(acl.Operator, acl.Write)),
	v1.OperatorServiceRemovePeerProcedure:         change(to(acl.Operator, acl.Write)),
	v1.OperatorServiceGetAutopilotProcedure:       query(to(acl.Operator, acl.Read)),
	v1.OperatorServiceSetAutopilotProcedure:       change(to(acl.Operator, acl.Write)),
	v1.OperatorServiceAutopilotHealthProcedure:    query(to(acl.Operator, acl.Read)),
	// A snapshot contains the whole ledger, and restoring one can change everything in it.
	v1.OperatorServiceSaveSnapshotProcedure:    change(management),
	v1.OperatorServiceRestoreSnapshotProcedure: change(management),

	v1.SecretsServiceGetSecretsStatusProcedure: query(to(acl.Operator, acl.Read)),
	v1.SecretsServiceRotateSecretsKeyProcedure: change(to(acl.Operator, acl.Write)),
	v1.SecretsServiceGetSigningKeysProcedure:   query(), // they are public
	v1.SecretsServiceRotateSigningKeyProcedure: change(to(acl.Operator, acl.Write)),

	v1.SystemServiceCollectGarbageProcedure: change(to(acl.Operator, acl.Write)),
	v1.SystemServiceWatchProcedure:          query(topics),

	// Package acls checks who makes the first token, and the ledger that it is the first.
	v1.ACLServiceBootstrapACLProcedure:    {changes: true, checksCaller: true},
	v1.ACLServicePutACLPolicyProcedure:    change(management),
	v1.ACLServiceGetACLPolicyProcedure:    query(ownPolicy),
	v1.ACLServiceListACLPoliciesProcedure: query(), // filter removes others'
	v1.ACLServiceDeleteACLPolicyProcedure: change(management),
	v1.ACLServicePutACLRoleProcedure:      change(management),
	v1.ACLServiceGetACLRoleProcedure:      query(management),
	v1.ACLServiceListACLRolesProcedure:    query(management),
	v1.ACLServiceDeleteACLRoleProcedure:   change(management),
	v1.ACLServiceCreateACLTokenProcedure:  change(management),
	v1.ACLServiceGetACLTokenProcedure:     query(management),
	v1.ACLServiceListACLTokensProcedure:   query(management),
	v1.ACLServiceDeleteACLTokenProcedure:  change(management),
	v1.ACLServiceGetACLSelfProcedure:      query(),
}

// need is what one call needs: all of its permissions.
type need struct {
	permissions []permission
	// changes is set for calls that change something, which are logged.
	changes bool
	// checksCaller is set for calls whose handler alone decides who may make them: also strangers come to it.
	checksCaller bool
}

// permission returns an error if the caller may not make this request; nil: any such request.
type permission func(c *call.Caller, msg any) error

func query(all ...permission) need  { return need{permissions: all} }
func change(all ...permission) need { return need{permissions: all, changes: true} }

// needOf returns what a call needs.
func needOf(procedure string) need {
	if n, known := needs[procedure]; known {
		return n
	}
	return change(management)
}

func (n need) check(c *call.Caller, msg any) error {
	for _, one := range n.permissions {
		if err := one(c, msg); err != nil {
			return err
		}
	}
	return nil
}

// in requires a capability in the namespace of the object.
func in(capability acl.Capability) permission {
	return func(c *call.Caller, msg any) error {
		if msg == nil {
			return somewhere(c, capability)
		}
		return c.MayIn(namespaceOf(msg), capability)
	}
}

// within requires a capability in the namespace that is listed or, for a list of all namespaces, in any of them.
func within(capability acl.Capability) permission {
	return func(c *call.Caller, msg any) error {
		if m, ok := msg.(interface{ GetNamespace() string }); ok {
			if namespace := call.AllOr(m.GetNamespace()); namespace != "" {
				return c.MayIn(namespace, capability)
			}
		}
		return somewhere(c, capability)
	}
}

func somewhere(c *call.Caller, capability acl.Capability) error {
	if !c.AllowSomewhere(capability) {
		return c.Lacks(fmt.Sprintf("the capability %q on any namespace", capability))
	}
	return nil
}

// to requires a level of an area.
func to(area acl.Area, level acl.Level) permission {
	return func(c *call.Caller, _ any) error { return c.May(area, level) }
}

// forced requires more if the request has force set, as that may release what is still in use.
func forced(more permission) permission {
	return func(c *call.Caller, msg any) error {
		if m, ok := msg.(interface{ GetForce() bool }); ok && m.GetForce() {
			return more(c, msg)
		}
		return nil
	}
}

// controller requires more to register a driver's controller.
func controller(more permission) permission {
	return func(c *call.Caller, msg any) error {
		if m, ok := msg.(*hostv1.RegisterDriverRequest); ok && m.GetType() != string(claim.NodeService) {
			return more(c, msg)
		}
		return nil
	}
}

// mounting requires more for workloads with volumes.
func mounting(more permission) permission {
	return func(c *call.Caller, msg any) error {
		if spec, ok := described(msg).(*hostv1.WorkloadSpec); ok && len(spec.GetVolumes()) > 0 {
			return more(c, msg)
		}
		return nil
	}
}

// others requires reading the workloads that one waits for, and stopping the workloads that it replaces, in their
// namespaces.
func others(c *call.Caller, msg any) error {
	spec, _ := described(msg).(*hostv1.WorkloadSpec)
	for _, list := range []struct {
		field string
		names []string
		needs acl.Capability
	}{
		{"after", spec.GetAfter(), acl.ReadWorkload},
		{"replaces", spec.GetReplaces(), acl.SubmitWorkload},
	} {
		for _, name := range list.names {
			namespace, _, qualified := strings.Cut(name, "/")
			if !qualified {
				namespace = namespaceOf(msg)
			}
			if !c.AllowNamespace(namespace, list.needs) {
				return c.Lacks(fmt.Sprintf("%s of workload %q: the capability %q on namespace %q", list.field, call.Shortened(name),
					list.needs, call.Shortened(namespace)))
			}
		}
	}
	return nil
}

// identities requires that the policies list, for the workload's namespace, the names of its services, and of those
// that it makes known as a terminating gateway.
func identities(c *call.Caller, msg any) error {
	spec, _ := described(msg).(*hostv1.WorkloadSpec)
	var missing []string
	use := func(name string) {
		if quoted := strconv.Quote(name); !c.AllowService(namespaceOf(msg), name) && !slices.Contains(missing, quoted) {
			missing = append(missing, quoted)
		}
	}
	for _, service := range spec.GetServices() {
		use(service.GetName())
		for _, linked := range service.GetConnect().GetGateway().GetTerminating().GetServices() {
			use(linked.GetName())
		}
	}
	if len(missing) > 0 {
		return c.Lacks(fmt.Sprintf("services = [%s] in the block namespace %q of a policy",
			call.Shortened(strings.Join(missing, ", ")), call.Shortened(namespaceOf(msg))))
	}
	return nil
}

// management requires a management token.
func management(c *call.Caller, _ any) error {
	if !c.IsManagement() {
		return c.Lacks("a management token")
	}
	return nil
}

// ownPolicy requires that the policy is one of the caller's, or a management token.
func ownPolicy(c *call.Caller, msg any) error {
	if m, ok := msg.(*hostv1.GetACLPolicyRequest); msg == nil || ok && c.Has(m.GetName()) {
		return nil
	}
	return management(c, msg)
}

// topics requires that the caller may list something of each topic.
func topics(c *call.Caller, msg any) error {
	m, _ := msg.(*hostv1.WatchRequest)
	for _, topic := range m.GetTopics() {
		var err error
		switch topic {
		case "nodes":
			err = c.May(acl.Node, acl.Read)
		case "drivers":
			err = c.May(acl.Plugin, acl.List)
		case "workloads":
			err = within(acl.ListWorkloads)(c, &hostv1.ListWorkloadsRequest{})
		default: // volumes and claims; the handler refuses others
			err = within(acl.CSIListVolume)(c, &hostv1.ListVolumesRequest{})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// namespaceOf returns the namespace of the object that a request names.
func namespaceOf(msg any) string {
	m, _ := described(msg).(interface{ GetNamespace() string })
	if m == nil {
		return claim.DefaultNamespace
	}
	return call.NamespaceOr(m.GetNamespace())
}

// described returns the spec in a request, or else the request.
func described(msg any) any {
	switch m := msg.(type) {
	case interface{ GetSpec() *hostv1.VolumeSpec }:
		return m.GetSpec()
	case interface{ GetSpec() *hostv1.WorkloadSpec }:
		return m.GetSpec()
	default:
		return msg
	}
}
