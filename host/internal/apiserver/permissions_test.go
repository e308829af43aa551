package apiserver

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	ledger "github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/host/internal/apiserver/acl"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	v1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
	servicev1 "github.com/pannier/pannier/sdk/proto/pannier/service/v1"
	"github.com/pannier/pannier/test/lib/check"
)

// procedures returns all calls of the API from the protobuf files.
func procedures() map[string]protoreflect.MethodDescriptor {
	all := map[string]protoreflect.MethodDescriptor{}
	of := hostv1.File_pannier_host_v1_volume_proto.Package()
	protoregistry.GlobalFiles.RangeFilesByPackage(of, func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				method := service.Methods().Get(j)
				all["/"+string(service.FullName())+"/"+string(method.Name())] = method
			}
		}
		return true
	})
	return all
}

func TestEveryCallHasItsNeed(t *testing.T) {
	all := procedures()
	for procedure := range all {
		if _, known := needs[procedure]; !known {
			t.Errorf("%s has no entry in permissions.go", procedure)
		}
	}
	for procedure := range needs {
		if all[procedure] == nil {
			t.Errorf("%s has an entry in permissions.go, and there is no such call", procedure)
		}
	}
	if n := needOf("/pannier.host.v1.NewService/New"); !n.changes || n.check(&call.Caller{}, nil) == nil {
		t.Error("a call that nobody has thought about is open")
	}
}

// The callers of the table. Each has all rights of its kind.
var callers = map[string]string{
	"none":  "",
	"other": `namespace "other" { policy = "write" }`,
	"read": `namespace "default" { policy = "read" }
		plugin { policy = "read" }
		node { policy = "read" }
		operator { policy = "read" }
		agent { policy = "read" }`,
	"write": `namespace "default" { policy = "write" }
		plugin { policy = "write" }
		node { policy = "write" }
		operator { policy = "write" }
		agent { policy = "write" }`,
	"denied": `namespace "*" { policy = "write" }
		namespace "default" { policy = "deny" }
		plugin { policy = "deny" }
		node { policy = "deny" }
		operator { policy = "deny" }
		agent { policy = "deny" }`,
}

// who lists the callers that may make a call if its request names namespace "default". Management tokens may
// make all calls, expired ones none.
var who = map[string][]string{
	"read write": {
		v1.VolumeServiceGetVolumeProcedure, v1.VolumeServiceExplainVolumeProcedure, v1.VolumeServiceListExternalProcedure,
		v1.VolumeServiceListSnapshotsProcedure, v1.VolumeServiceGetGroupSnapshotProcedure,
		v1.WorkloadServiceGetWorkloadProcedure, v1.DriverServiceListDriversProcedure, v1.DriverServiceGetDriverProcedure,
		v1.DeviceServiceListDevicesProcedure, v1.DeviceServiceDeviceStatsProcedure, v1.PluginServiceListPluginsProcedure,
		v1.PluginServicePluginLogProcedure, v1.DriverServiceDriverLogProcedure,
		v1.AgentServiceStatusProcedure, v1.AgentServiceMonitorProcedure, v1.AgentServiceExamineProcedure,
		v1.NodeServiceListNodesProcedure,
		v1.NodeServiceGetNodeProcedure,
		v1.MemberServiceListMembersProcedure, v1.OperatorServiceListPeersProcedure, v1.OperatorServiceGetAutopilotProcedure,
		v1.OperatorServiceAutopilotHealthProcedure, v1.SecretsServiceGetSecretsStatusProcedure,
		v1.VolumeServiceListVolumesProcedure, v1.WorkloadServiceListWorkloadsProcedure, v1.TokenServiceListTokensProcedure,
	},
	"write": {
		v1.VolumeServiceRegisterVolumeProcedure, v1.VolumeServiceCreateVolumeProcedure,
		v1.VolumeServiceCheckVolumeProcedure,
		v1.VolumeServiceDeregisterVolumeProcedure,
		v1.VolumeServiceDeleteVolumeProcedure, v1.VolumeServiceExpandVolumeProcedure,
		v1.VolumeServiceModifyVolumeProcedure, v1.VolumeServiceDetachVolumeProcedure,
		v1.VolumeServiceCreateSnapshotProcedure, v1.VolumeServiceDeleteSnapshotProcedure,
		v1.VolumeServiceCreateGroupSnapshotProcedure, v1.VolumeServiceDeleteGroupSnapshotProcedure,
		v1.WorkloadServiceStartWorkloadProcedure, v1.WorkloadServiceRunningWorkloadProcedure,
		v1.WorkloadServiceLeaveWorkloadProcedure,
		v1.WorkloadServiceStopWorkloadProcedure, v1.WorkloadServiceCheckWorkloadProcedure,
		v1.DriverServiceRegisterDriverProcedure, v1.DriverServiceDeregisterDriverProcedure,
		v1.DriverServiceRestartDriverProcedure,
		v1.PluginServiceSwapPluginProcedure, v1.PluginServiceRollbackPluginProcedure, v1.PluginServiceRestartPluginProcedure,
		v1.PluginServicePinPluginProcedure, v1.PluginServicePromotePluginProcedure,
		v1.PluginServiceUnpinPluginProcedure, v1.PluginServiceVerifyPluginProcedure, v1.PluginServiceRemovePluginProcedure,
		v1.TokenServiceSweepTokensProcedure, v1.AgentServiceStopProcedure, v1.AgentServiceReloadProcedure,
		v1.AgentServiceUpgradeProcedure, v1.AgentServiceDiagnoseProcedure,
		v1.NodeServiceDrainNodeProcedure, v1.NodeServiceSetNodeEligibilityProcedure, v1.NodeServicePurgeNodeProcedure,
		v1.NodeServiceSetNodeNamespacesProcedure, v1.NodeServiceApproveDriverProcedure,
		v1.MemberServiceJoinMembersProcedure, v1.MemberServiceForceLeaveProcedure, v1.MemberServiceLeaveProcedure,
		v1.MemberServiceListKeysProcedure, v1.MemberServiceAddKeyProcedure, v1.MemberServiceUseKeyProcedure,
		v1.MemberServiceRemoveKeyProcedure,
		v1.OperatorServiceTransferLeadershipProcedure, v1.OperatorServiceRemovePeerProcedure,
		v1.OperatorServiceSetAutopilotProcedure,
		v1.SecretsServiceRotateSecretsKeyProcedure, v1.SecretsServiceRotateSigningKeyProcedure,
		v1.SystemServiceCollectGarbageProcedure,
	},
	"other read write denied": {
		v1.AgentServiceEventsProcedure, v1.SystemServiceWatchProcedure, // without topics
		v1.ACLServiceListACLPoliciesProcedure, v1.ACLServiceGetACLSelfProcedure, v1.SecretsServiceGetSigningKeysProcedure,
	},
	"none other read write denied": {
		v1.ACLServiceBootstrapACLProcedure, v1.ClusterServiceGetAuthorityProcedure, v1.ClusterServiceSignCertificateProcedure,
	},
	"": {
		v1.OperatorServiceSaveSnapshotProcedure, v1.OperatorServiceRestoreSnapshotProcedure,
		v1.ACLServicePutACLPolicyProcedure, v1.ACLServiceGetACLPolicyProcedure, v1.ACLServiceDeleteACLPolicyProcedure,
		v1.ACLServicePutACLRoleProcedure, v1.ACLServiceGetACLRoleProcedure, v1.ACLServiceListACLRolesProcedure,
		v1.ACLServiceDeleteACLRoleProcedure,
		v1.ACLServiceCreateACLTokenProcedure, v1.ACLServiceGetACLTokenProcedure, v1.ACLServiceListACLTokensProcedure,
		v1.ACLServiceDeleteACLTokenProcedure,
	},
}

// tokensOf finds tokens by secret.
type tokensOf map[string]ledger.Granted

func (f tokensOf) Granted(_ context.Context, hash string) (ledger.Granted, error) {
	if g, ok := f[hash]; ok || hash == "" {
		return g, nil
	}
	return ledger.Granted{}, ledger.ErrTokenNotFound
}

// openGate serves all calls of the API on a socket. Calls that pass the interceptor are not implemented.
func openGate(t *testing.T, resolver *acl.Resolver) *grpc.ClientConn {
	t.Helper()
	s := New(Config{Logger: hclog.NewNullLogger(), ACL: resolver})
	s.calls = newCallMetrics()
	mux := unimplemented(s)
	socket := filepath.Join(t.TempDir(), "s")
	l := check.Must(net.Listen("unix", socket))(t)
	server := s.httpServer(mux)
	server.ConnContext = connContext
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		server.Close()
		<-done
	})
	conn := check.Must(grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// unimplemented serves all calls of the API: those that pass the interceptor are not implemented.
func unimplemented(s *Server) http.Handler {
	mux, options := http.NewServeMux(), connect.WithInterceptors(interceptor{s})
	mux.Handle(v1.NewVolumeServiceHandler(v1.UnimplementedVolumeServiceHandler{}, options))
	mux.Handle(v1.NewWorkloadServiceHandler(v1.UnimplementedWorkloadServiceHandler{}, options))
	mux.Handle(v1.NewDriverServiceHandler(v1.UnimplementedDriverServiceHandler{}, options))
	mux.Handle(v1.NewDeviceServiceHandler(v1.UnimplementedDeviceServiceHandler{}, options))
	mux.Handle(v1.NewPluginServiceHandler(v1.UnimplementedPluginServiceHandler{}, options))
	mux.Handle(v1.NewTokenServiceHandler(v1.UnimplementedTokenServiceHandler{}, options))
	mux.Handle(v1.NewAgentServiceHandler(v1.UnimplementedAgentServiceHandler{}, options))
	mux.Handle(v1.NewNodeServiceHandler(v1.UnimplementedNodeServiceHandler{}, options))
	mux.Handle(v1.NewMemberServiceHandler(v1.UnimplementedMemberServiceHandler{}, options))
	mux.Handle(v1.NewClusterServiceHandler(v1.UnimplementedClusterServiceHandler{}, options))
	mux.Handle(v1.NewOperatorServiceHandler(v1.UnimplementedOperatorServiceHandler{}, options))
	mux.Handle(v1.NewSecretsServiceHandler(v1.UnimplementedSecretsServiceHandler{}, options))
	mux.Handle(v1.NewSystemServiceHandler(v1.UnimplementedSystemServiceHandler{}, options))
	mux.Handle(v1.NewACLServiceHandler(v1.UnimplementedACLServiceHandler{}, options))
	return mux
}

// callOf makes a call with this secret about an object of namespace "default", and returns its error.
func callOf(t *testing.T, conn *grpc.ClientConn, procedure string, method protoreflect.MethodDescriptor,
	secret string,
) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if secret != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, api.TokenHeader, secret)
	}
	stream := check.Must(conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, procedure))(t)
	if err := stream.SendMsg(aRequest(method)); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	check.NoError(t, stream.CloseSend())
	return stream.RecvMsg(dynamicpb.NewMessage(method.Output()))
}

// Every call of the API by every caller.
func TestWhoMayDoWhat(t *testing.T) {
	known := tokensOf{}
	token := func(name string, typ ledger.TokenType, expires time.Time, rules string) {
		g := ledger.Granted{Token: ledger.Token{Accessor: "acc-" + name, Name: name, Type: typ, ExpiresAt: expires}}
		if rules != "" {
			g.Policies = []ledger.Policy{{Name: "of-" + name, Rules: rules}}
		}
		known[ledger.Hash(name)] = g
	}
	for name, rules := range callers {
		if name != "none" {
			token(name, ledger.Client, time.Time{}, rules)
		}
	}
	token("management", ledger.Management, time.Now().Add(time.Hour), "")
	token("expired", ledger.Management, time.Now().Add(-time.Second), "")
	conn := openGate(t, acl.NewResolver(known, 0, hclog.NewNullLogger()))

	all, told := procedures(), map[string]bool{}
	for may, calls := range who {
		for _, procedure := range calls {
			told[procedure] = true
			method := all[procedure]
			if method == nil {
				t.Errorf("there is no call %s", procedure)
				continue
			}
			t.Run(label(procedure), func(t *testing.T) {
				for name := range callers {
					secret := name
					if name == "none" {
						secret = ""
					}
					err := callOf(t, conn, procedure, method, secret)
					if slices.Contains(strings.Fields(may), name) {
						wantStatus(t, name, err, codes.Unimplemented, "is not implemented")
					} else {
						says := []string{"is missing: ", `token "` + name + `" (accessor acc-` + name + ")"}
						if name == "none" {
							says = []string{"this call has no token"}
						}
						wantStatus(t, name, err, codes.PermissionDenied, says...)
					}
				}
				wantStatus(t, "management", callOf(t, conn, procedure, method, "management"), codes.Unimplemented,
					"is not implemented")
				wantStatus(t, "expired", callOf(t, conn, procedure, method, "expired"), codes.Unauthenticated,
					`token "expired" (accessor acc-expired) ended at`)
				wantStatus(t, "unknown", callOf(t, conn, procedure, method, "unknown"), codes.Unauthenticated, "is not known here")
			})
		}
	}
	for procedure := range all {
		if !told[procedure] {
			t.Errorf("it is not told who may call %s", procedure)
		}
	}
}

func wantStatus(t *testing.T, who string, err error, code codes.Code, says ...string) {
	t.Helper()
	if status.Code(err) != code {
		t.Errorf("%s: got %v, want %v", who, err, code)
		return
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%s: %q lacks %q", who, err, s)
		}
	}
}

// Permissions that depend on the request.
func TestNeedsOfRequests(t *testing.T) {
	const shop = `namespace "shop" { policy = "write" }`
	spec := func(change func(*hostv1.WorkloadSpec)) *hostv1.StartWorkloadRequest {
		s := &hostv1.WorkloadSpec{Namespace: "shop", Id: "w"}
		change(s)
		return &hostv1.StartWorkloadRequest{Spec: s}
	}
	plain := spec(func(*hostv1.WorkloadSpec) {})
	withVolume := spec(func(s *hostv1.WorkloadSpec) { s.Volumes = []*hostv1.VolumeRequest{{Source: "v"}} })
	withService := spec(func(s *hostv1.WorkloadSpec) {
		s.Services = []*servicev1.Service{{Name: "payments", Connect: &servicev1.Connect{Gateway: &servicev1.Gateway{
			Terminating: &servicev1.Terminating{Services: []*servicev1.LinkedService{{Name: "cards"}}},
		}}}}
	})
	for name, c := range map[string]struct {
		procedure string
		msg       any
		rules     string
		lacks     string // empty: allowed
	}{
		"no namespace is default": {
			v1.VolumeServiceGetVolumeProcedure, &hostv1.GetVolumeRequest{Id: "v"}, shop,
			`"csi-read-volume" on namespace "default"`,
		},
		"default is no namespace": {
			v1.VolumeServiceGetVolumeProcedure, &hostv1.GetVolumeRequest{Id: "v"},
			`namespace "default" { policy = "read" }`, "",
		},
		"a spec's namespace": {
			v1.VolumeServiceCreateVolumeProcedure,
			&hostv1.CreateVolumeRequest{Spec: &hostv1.VolumeSpec{Namespace: "till"}}, shop,
			`"csi-write-volume" on namespace "till"`,
		},
		"no spec": {
			v1.VolumeServiceCreateVolumeProcedure, &hostv1.CreateVolumeRequest{}, shop,
			`on namespace "default"`,
		},
		"a long name": {
			v1.VolumeServiceGetVolumeProcedure,
			&hostv1.GetVolumeRequest{Namespace: strings.Repeat("x", 1<<20)}, shop, "is missing",
		},
		"a pattern is no namespace": {
			v1.VolumeServiceGetVolumeProcedure,
			&hostv1.GetVolumeRequest{Namespace: "*", Id: "v"}, shop, `on namespace "*"`,
		},
		"list of all": {
			v1.VolumeServiceListVolumesProcedure, &hostv1.ListVolumesRequest{Namespace: "*"},
			shop, "",
		},
		"list of all, no namespace": {v1.VolumeServiceListVolumesProcedure, &hostv1.ListVolumesRequest{}, shop, ""},
		"list of all, nothing to see": {
			v1.VolumeServiceListVolumesProcedure, &hostv1.ListVolumesRequest{},
			`node { policy = "write" }`, `"csi-list-volume" on any namespace`,
		},
		"list of one": {
			v1.WorkloadServiceListWorkloadsProcedure,
			&hostv1.ListWorkloadsRequest{Namespace: "till"}, shop, `"list-workloads" on namespace "till"`,
		},
		"list of one's own": {
			v1.WorkloadServiceListWorkloadsProcedure,
			&hostv1.ListWorkloadsRequest{Namespace: "shop"}, shop, "",
		},
		"detach": {
			v1.VolumeServiceDetachVolumeProcedure,
			&hostv1.DetachVolumeRequest{Namespace: "shop"}, shop, "",
		},
		"detach by force": {
			v1.VolumeServiceDetachVolumeProcedure,
			&hostv1.DetachVolumeRequest{Namespace: "shop", Force: true}, shop, `policy "write" for operator`,
		},
		"deregister by force": {
			v1.VolumeServiceDeregisterVolumeProcedure,
			&hostv1.DeregisterVolumeRequest{Namespace: "shop", Force: true}, shop, `policy "write" for operator`,
		},
		"force by an operator": {
			v1.VolumeServiceDeregisterVolumeProcedure,
			&hostv1.DeregisterVolumeRequest{Namespace: "shop", Force: true}, shop + "\n" + `operator { policy = "write" }`, "",
		},
		"force by an operator elsewhere": {
			v1.VolumeServiceDeregisterVolumeProcedure,
			&hostv1.DeregisterVolumeRequest{Namespace: "till", Force: true}, shop + "\n" +
				`operator { policy = "write" }`, `on namespace "till"`,
		},
		"purge by force": {
			v1.NodeServicePurgeNodeProcedure, &hostv1.PurgeNodeRequest{Force: true},
			`node { policy = "write" }`, `policy "write" for operator`,
		},
		"start": {
			v1.WorkloadServiceStartWorkloadProcedure, plain,
			`namespace "shop" { capabilities = ["submit-workload"] }`, "",
		},
		"start with a volume": {
			v1.WorkloadServiceStartWorkloadProcedure, withVolume,
			`namespace "shop" { capabilities = ["submit-workload"] }`, `"csi-mount-volume" on namespace "shop"`,
		},
		"start with an ephemeral volume": {
			v1.WorkloadServiceStartWorkloadProcedure,
			spec(func(s *hostv1.WorkloadSpec) { s.Volumes = []*hostv1.VolumeRequest{{Name: "v", Driver: "local"}} }),
			`namespace "shop" { capabilities = ["submit-workload"] }`, `"csi-mount-volume" on namespace "shop"`,
		},
		"start with a volume, may mount": {
			v1.WorkloadServiceStartWorkloadProcedure, withVolume,
			`namespace "shop" { capabilities = ["submit-workload", "csi-mount-volume"] }`, "",
		},
		"wait for its own": {
			v1.WorkloadServiceStartWorkloadProcedure,
			spec(func(s *hostv1.WorkloadSpec) { s.After, s.Replaces = []string{"a"}, []string{"b"} }), shop, "",
		},
		"wait for another's": {
			v1.WorkloadServiceStartWorkloadProcedure,
			spec(
				func(s *hostv1.WorkloadSpec) { s.After = []string{"till/a"} }), shop,
			`after of workload "till/a": the capability "read-workload" on namespace "till"`,
		},
		"take another's place": {
			v1.WorkloadServiceStartWorkloadProcedure,
			spec(func(s *hostv1.WorkloadSpec) { s.Replaces = []string{"till/a"} }), shop + "\n" +
				`namespace "till" { policy = "read" }`,
			`replaces of workload "till/a": the capability "submit-workload" on namespace "till"`,
		},
		"wait for another's it may read": {
			v1.WorkloadServiceStartWorkloadProcedure,
			spec(func(s *hostv1.WorkloadSpec) { s.After = []string{"till/a"} }), shop + "\n" +
				`namespace "till" { policy = "read" }`, "",
		},
		"take the place of two": {
			v1.WorkloadServiceStartWorkloadProcedure,
			spec(func(s *hostv1.WorkloadSpec) {
				s.Replaces = []string{
					"b",
					"till/a",
				}
			}), shop, `"submit-workload" on namespace "till"`,
		},
		"take a place that it may": {
			v1.WorkloadServiceStartWorkloadProcedure,
			spec(func(s *hostv1.WorkloadSpec) { s.Replaces = []string{"till/a"} }), shop + "\n" +
				`namespace "till" { capabilities = ["submit-workload"] }`, "",
		},
		"a service": {
			v1.WorkloadServiceStartWorkloadProcedure, withService, shop,
			`services = ["payments", "cards"] in the block namespace "shop" of a policy`,
		},
		"a service of another namespace": {
			v1.WorkloadServiceStartWorkloadProcedure, withService,
			shop + "\n" + `namespace "till" { services = ["*"] }`, `services = ["payments", "cards"]`,
		},
		"a service, not that behind the gateway": {
			v1.WorkloadServiceStartWorkloadProcedure, withService,
			"namespace \"shop\" {\npolicy = \"write\"\nservices = [\"pay*\"]\n}", `services = ["cards"]`,
		},
		"its own services": {
			v1.WorkloadServiceStartWorkloadProcedure, withService,
			"namespace \"shop\" {\npolicy = \"write\"\nservices = [\"pay*\", \"cards\"]\n}", "",
		},
		"a long service": {
			v1.WorkloadServiceStartWorkloadProcedure,
			spec(func(s *hostv1.WorkloadSpec) {
				s.Services = []*servicev1.Service{{Name: strings.Repeat("x", 1<<20)}}
			}), shop, "is missing",
		},
		"watch volumes": {
			v1.SystemServiceWatchProcedure,
			&hostv1.WatchRequest{Topics: []string{"volumes", "claims", "workloads"}}, shop, "",
		},
		"watch nodes too": {
			v1.SystemServiceWatchProcedure,
			&hostv1.WatchRequest{Topics: []string{"volumes", "nodes"}}, shop, `policy "read" for node`,
		},
		"watch drivers": {
			v1.SystemServiceWatchProcedure, &hostv1.WatchRequest{Topics: []string{"drivers"}},
			`plugin { policy = "list" }`, "",
		},
		"watch what is new": {
			v1.SystemServiceWatchProcedure, &hostv1.WatchRequest{Topics: []string{"secrets"}},
			`plugin { policy = "write" }`, "is missing",
		},
		"its own policy": {
			v1.ACLServiceGetACLPolicyProcedure, &hostv1.GetACLPolicyRequest{Name: "mine"},
			shop, "",
		},
		"another's policy": {
			v1.ACLServiceGetACLPolicyProcedure, &hostv1.GetACLPolicyRequest{Name: "theirs"},
			shop, "a management token",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := check.Must(acl.Parse(c.rules))(t)
			who := &call.Caller{Identity: acl.Identity{Accessor: "a", Name: "n", Policies: []string{"mine"}, Rules: acl.Merge(p)}}
			err := needOf(c.procedure).check(who, c.msg)
			if c.lacks == "" {
				check.NoError(t, err)
				return
			}
			wantError(t, err, connect.CodePermissionDenied, c.lacks, "is missing: ")
			if err != nil && len(err.Error()) > 1000 {
				t.Errorf("a refusal of %d bytes", len(err.Error()))
			}
		})
	}
}
