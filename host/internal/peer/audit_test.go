package peer

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/codec"
	"github.com/pannier/pannier/cluster/command"
	peerv1 "github.com/pannier/pannier/host/internal/peer/proto/pannier/peer/v1"
	"github.com/pannier/pannier/host/internal/system/pki"
	storagev1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/storage/v1"
)

// What an agent has changed for another one, or refused it, is in its audit log; reads are not.
func TestChangesForOthersAreAudited(t *testing.T) {
	w := form(t, 1, "n1", "n2")
	n1, leader := w.agents["n1"], w.leader(t)
	n1.register(t)
	w.agents["n2"].register(t)
	token := claim.Token{
		ID: "11111111-2222-3333-4444-555555555555", Workload: ref("a"), Node: "n1", Service: "api", Consul: "default",
	}
	v := w.volume(t, "v", "d")
	_, err := cluster.Apply(within(t), n1.Servers,
		command.Start(claim.Run{Ref: ref("a"), Node: "n1"}, []claim.Claim{wants(v)}, token))
	must(t, err)
	_, err = n1.VolumeSecrets(within(t), v)
	must(t, err)
	tokens := NodeTokens{Servers: n1.Servers}
	must(t, tokens.Intend(within(t), token))
	_, _, err = tokens.Derive(within(t), token)
	must(t, err)
	stolen := token
	stolen.Node = "n2" // as n2 would say
	if err := (NodeTokens{Servers: w.agents["n2"].Servers}).Revoke(within(t), stolen, "the stolen secret"); err == nil {
		t.Error("a token of another node is revoked")
	}
	named := token
	named.Accessor = "99999999-2222-3333-4444-555555555555" // the ledger's counts
	must(t, tokens.Revoke(within(t), named, "the secret"))
	c := claim.Claim{Volume: v.VolumeRef, Workload: ref("a"), Node: "n1"}
	_, err = leader.nodes.Owns(within(t), c)
	must(t, err)
	must(t, leader.nodes.DetachUnknown(within(t), c, v))
	must(t, leader.nodes.StopWorkload(within(t), "n1", ref("a"), "why"))
	conn, err := n1.dialer.Conn(w.agents["n2"].port.Addr().String(), "n2", pki.Node)
	must(t, err)
	_, err = peerv1.NewNodeServiceClient(conn).StopWorkload(within(t), &peerv1.StopWorkloadRequest{})
	if err == nil {
		t.Error("a node has another one stop a workload")
	}

	node := func(name string, role pki.Role) pki.Identity { return pki.Identity{Name: name, DC: "dc1", Role: role} }
	by, server := node("n1", pki.Node), node(leader.name, pki.Server)
	want := []Change{
		{By: by, Method: peerv1.ServersService_VolumeSecrets_FullMethodName, Object: "default/v", Allowed: true},
		{
			By: by, Method: peerv1.ServersService_DeriveToken_FullMethodName, Object: "a api", Accessor: "accessor",
			Allowed: true,
		},
		{
			By: node("n2", pki.Node), Method: peerv1.ServersService_RevokeToken_FullMethodName, Object: "a api",
			Code: codes.PermissionDenied,
		},
		{
			By: by, Method: peerv1.ServersService_RevokeToken_FullMethodName, Object: "a api", Accessor: token.ID,
			Allowed: true,
		},
		{
			By: server, Method: peerv1.NodeService_DetachUnknown_FullMethodName, Object: "v of a",
			Allowed: true,
		},
		{By: server, Method: peerv1.NodeService_StopWorkload_FullMethodName, Object: "default/a", Allowed: true},
		{By: by, Method: peerv1.NodeService_StopWorkload_FullMethodName, Code: codes.PermissionDenied},
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.audited, want) {
		t.Errorf("audited:\n%+v\nwant:\n%+v", w.audited, want)
	}
}

// Each call that is audited names its object, and none of the request's other fields.
func TestEachChangeNamesItsObject(t *testing.T) {
	claimed, err := codec.Marshal(claim.Claim{Volume: claim.VolumeRef{Namespace: "ns", ID: "the-id"}})
	must(t, err)
	volume, err := codec.Marshal(claim.Volume{Definition: claim.Definition{
		VolumeRef: claim.VolumeRef{Namespace: "ns", ID: "the-id"}, Context: map[string]string{"k": "hidden"},
	}})
	must(t, err)
	token, err := codec.Marshal(claim.Token{Workload: claim.WorkloadRef{Namespace: "ns", ID: "the-id"}, Service: "s"})
	must(t, err)
	names := map[string]string{
		"namespace": "ns", "volume": "the-id", "workload": "the-id", "name": "the-id", "external_id": "the-id",
		"snapshot_id": "the-id", "group_id": "the-id", "id": "driver",
	}
	records := map[string][]byte{"claim": claimed, "volume": volume, "token": token}
	var fill func(m protoreflect.Message)
	fill = func(m protoreflect.Message) {
		for i := range m.Descriptor().Fields().Len() {
			f := m.Descriptor().Fields().Get(i)
			switch name := string(f.Name()); {
			case f.IsMap() && f.MapValue().Kind() == protoreflect.StringKind:
				m.Mutable(f).Map().Set(protoreflect.ValueOf("k").MapKey(), protoreflect.ValueOf("hidden"))
			case f.IsList() || f.IsMap():
			case f.Kind() == protoreflect.BytesKind && records[name] != nil:
				m.Set(f, protoreflect.ValueOf(records[name]))
			case f.Kind() == protoreflect.StringKind && names[name] != "":
				m.Set(f, protoreflect.ValueOf(names[name]))
			case f.Kind() == protoreflect.StringKind:
				m.Set(f, protoreflect.ValueOf("hidden"))
			case f.Message() != nil:
				fill(m.Mutable(f).Message())
			}
		}
	}
	keys := []string{
		peerv1.ServersService_SecretsKeys_FullMethodName, peerv1.ServersService_OfferSecretsKey_FullMethodName,
	}
	for _, file := range []protoreflect.FileDescriptor{
		peerv1.File_pannier_peer_v1_servers_proto, peerv1.File_pannier_peer_v1_node_proto,
		storagev1.File_pannier_plugin_storage_v1_storage_proto,
	} {
		for i := range file.Services().Len() {
			for j := range file.Services().Get(i).Methods().Len() {
				m := file.Services().Get(i).Methods().Get(j)
				full := "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
				if methods[full] == 0 || methods[full]&unaudited != 0 || slices.Contains(keys, full) {
					continue
				}
				kind, err := protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName())
				must(t, err)
				req := kind.New()
				fill(req)
				if got := objectOf(req.Interface()); !strings.Contains(got, "the-id") || strings.Contains(got, "hidden") {
					t.Errorf("%s is audited about %q", full, got)
				}
			}
		}
	}
}
