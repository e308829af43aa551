package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/apiserver/acl"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/csi/controllers"
	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/host/internal/system/pki/pkitest"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
)

// openACLHost opens a single host with ACLs. h.client is root, who needs no token.
func openACLHost(t *testing.T, change ...func(c *parts)) *host {
	t.Helper()
	on := func(c *parts) {
		c.ACL = acl.NewResolver(acl.Here{Ledger: c.Ledger}, 0, c.Logger)
		c.SocketRoot = true
	}
	return openHost(t, append([]func(*parts){on}, change...)...)
}

// as returns a client with a token that has one policy with these rules.
func (h *host) as(t *testing.T, name, rules string) *api.Client {
	t.Helper()
	client, _ := h.token(t, name, rules, nil)
	return client
}

func (h *host) token(t *testing.T, name, rules string, ttl *durationpb.Duration) (*api.Client, *hostv1.ACLToken) {
	t.Helper()
	made := h.newToken(t, name, rules, ttl)
	return h.with(t, made.GetSecret()), made.GetToken()
}

// newToken makes a token with a policy of its name.
func (h *host) newToken(t *testing.T, name, rules string, ttl *durationpb.Duration) *hostv1.CreateACLTokenResponse {
	t.Helper()
	_, err := h.client.ACL.PutACLPolicy(h.ctx, &hostv1.PutACLPolicyRequest{Name: name, Rules: rules})
	check.NoError(t, err)
	return check.Must(h.client.ACL.CreateACLToken(h.ctx,
		&hostv1.CreateACLTokenRequest{Name: name, Policies: []string{name}, Ttl: ttl}))(t)
}

// mustCreate makes a token and returns its secret.
func mustCreate(t *testing.T, h *host, name, rules string) string {
	t.Helper()
	return h.newToken(t, name, rules, nil).GetSecret()
}

func (h *host) with(t *testing.T, secret string) *api.Client {
	t.Helper()
	client := check.Must(api.New("unix://"+h.cfg.Socket, api.WithToken(secret)))(t)
	t.Cleanup(func() { client.Close() })
	return client
}

func inNamespace(namespace string) func(*hostv1.VolumeSpec) {
	return func(s *hostv1.VolumeSpec) { s.Namespace = namespace }
}

func TestVolumesOfAnotherNamespace(t *testing.T) {
	h := openACLHost(t)
	h.create(t, spec("mine", inNamespace("shop")))
	theirs := h.create(t, spec("theirs", inNamespace("till")))
	h.create(t, spec("plain"))
	shop := h.as(t, "shop", `namespace "shop" { policy = "write" }
		plugin { policy = "read" }`)

	list := check.Must(shop.Volumes.ListVolumes(h.ctx, &hostv1.ListVolumesRequest{}))(t)
	if len(list.Volumes) != 1 || list.Volumes[0].Spec.Id != "mine" {
		t.Errorf("listed %v", list.Volumes)
	}
	all, err := h.client.Volumes.ListVolumes(h.ctx, &hostv1.ListVolumesRequest{})
	if check.NoError(t, err); len(all.Volumes) != 3 {
		t.Errorf("root sees %d volumes", len(all.Volumes))
	}
	_, err = shop.Volumes.ListVolumes(h.ctx, &hostv1.ListVolumesRequest{Namespace: "till"})
	wantError(t, err, connect.CodePermissionDenied, `the capability "csi-list-volume" on namespace "till" is missing`)

	// The refusal is the same whether the id exists or not.
	for _, id := range []string{"theirs", "none"} {
		_, err = shop.Volumes.GetVolume(h.ctx, &hostv1.GetVolumeRequest{Namespace: "till", Id: id})
		wantError(t, err, connect.CodePermissionDenied, `the capability "csi-read-volume" on namespace "till" is missing`,
			`token "shop"`)
		_, err = shop.Volumes.DeleteVolume(h.ctx, &hostv1.DeleteVolumeRequest{Namespace: "till", Id: id})
		wantError(t, err, connect.CodePermissionDenied, `the capability "csi-write-volume" on namespace "till" is missing`)
	}
	_, err = shop.Volumes.GetVolume(h.ctx, &hostv1.GetVolumeRequest{Namespace: "shop", Id: "none"})
	wantError(t, err, connect.CodeNotFound)

	// By the driver's own id, in the caller's own namespace. Nothing of the other namespace is told.
	hides := func(err error, capability string) {
		t.Helper()
		wantError(t, err, connect.CodePermissionDenied, `the capability "`+capability+`" on the namespace that has registered`)
		if err != nil && (strings.Contains(err.Error(), "till") || strings.Contains(err.Error(), `"theirs"`)) {
			t.Errorf("it is told whose volume it is: %v", err)
		}
	}
	stolen := spec("stolen", inNamespace("shop"), func(s *hostv1.VolumeSpec) { s.ExternalId = theirs.Spec.ExternalId })
	_, err = shop.Volumes.RegisterVolume(h.ctx, &hostv1.RegisterVolumeRequest{Spec: stolen})
	hides(err, "csi-write-volume")
	cloned := spec("cloned", inNamespace("shop"), func(s *hostv1.VolumeSpec) { s.CloneId = theirs.Spec.ExternalId })
	_, err = shop.Volumes.CreateVolume(h.ctx, &hostv1.CreateVolumeRequest{Spec: cloned})
	hides(err, "csi-read-volume")
	_, err = h.client.Volumes.CreateSnapshot(h.ctx,
		&hostv1.CreateSnapshotRequest{Namespace: "till", VolumeId: "theirs", Name: "s"})
	check.NoError(t, err)
	snapshots, err := h.client.Volumes.ListSnapshots(h.ctx, &hostv1.ListSnapshotsRequest{PluginId: "fake"})
	check.NoError(t, err)
	restored := spec("restored", inNamespace("shop"),
		func(s *hostv1.VolumeSpec) { s.SnapshotId = snapshots.Snapshots[0].SnapshotId })
	_, err = shop.Volumes.CreateVolume(h.ctx, &hostv1.CreateVolumeRequest{Spec: restored})
	hides(err, "csi-read-volume")
	if len(h.fake.volumes) != 3 {
		t.Errorf("the driver has %d volumes", len(h.fake.volumes))
	}

	// Who may see the namespace is told.
	lister := h.as(t, "lister", `namespace "shop" { policy = "write" }
		namespace "till" { policy = "read" }`)
	_, err = lister.Volumes.RegisterVolume(h.ctx, &hostv1.RegisterVolumeRequest{Spec: stolen})
	wantError(t, err, connect.CodePermissionDenied, `the capability "csi-write-volume" on namespace "till" is missing`)
	h.fake.mu.Lock()
	h.fake.answers = theirs.Spec.ExternalId
	h.fake.mu.Unlock()
	_, err = shop.Volumes.CreateVolume(h.ctx, &hostv1.CreateVolumeRequest{Spec: spec("twin", inNamespace("shop"))})
	wantError(t, err, connect.CodeAlreadyExists, `"shop/twin"`, theirs.Spec.ExternalId, "one id to several volumes")
	if err != nil && strings.Contains(err.Error(), `till/theirs`) {
		t.Errorf("it is told whose volume it is: %v", err)
	}
	h.fake.mu.Lock()
	h.fake.answers = ""
	h.fake.mu.Unlock()
	both := h.as(t, "both", `namespace "shop" { policy = "write" }
		namespace "till" { policy = "write" }`)
	_, err = both.Volumes.RegisterVolume(h.ctx, &hostv1.RegisterVolumeRequest{Spec: stolen})
	wantError(t, err, connect.CodeAlreadyExists, `"till/theirs"`, "deregister it first")

	// The driver's volumes of others are not shown.
	snapshots, err = shop.Volumes.ListSnapshots(h.ctx, &hostv1.ListSnapshotsRequest{PluginId: "fake"})
	if check.NoError(t, err); len(snapshots.Snapshots) != 0 {
		t.Errorf("snapshots %v", snapshots.Snapshots)
	}
	h.fake.mu.Lock()
	h.fake.volumes["nobodys"] = storage.CreateRequest{}
	h.fake.mu.Unlock()
	external, err := shop.Volumes.ListExternal(h.ctx, &hostv1.ListExternalRequest{PluginId: "fake"})
	check.NoError(t, err)
	seen := map[string]bool{}
	for _, v := range external.Volumes {
		seen[v.ExternalId] = true
	}
	if len(seen) != 2 || !seen["nobodys"] || seen[theirs.Spec.ExternalId] {
		t.Errorf("external volumes %v", seen)
	}
	// A volume that nobody has registered may be, and is then the caller's.
	_, err = shop.Volumes.RegisterVolume(h.ctx, &hostv1.RegisterVolumeRequest{
		Spec: spec("found", inNamespace("shop"), func(s *hostv1.VolumeSpec) { s.ExternalId = "nobodys" }),
	})
	check.NoError(t, err)
}

// A snapshot is its namespace's after its volume is gone, alone or of a group. What the ledger does not know is used by
// those alone whom an operator allows that.
func TestSnapshotsOfAnotherNamespace(t *testing.T) {
	h := openACLHost(t)
	theirs := h.create(t, spec("theirs", inNamespace("till"))).GetSpec().GetExternalId()
	_, err := h.client.Volumes.CreateSnapshot(h.ctx,
		&hostv1.CreateSnapshotRequest{Namespace: "till", VolumeId: "theirs", Name: "s"})
	check.NoError(t, err)
	_, err = h.client.Volumes.CreateGroupSnapshot(h.ctx,
		&hostv1.CreateGroupSnapshotRequest{Namespace: "till", VolumeIds: []string{"theirs"}, Name: "g"})
	check.NoError(t, err)
	taken := slices.Clone(h.fake.snapshots)
	_, err = h.client.Volumes.DeregisterVolume(h.ctx, &hostv1.DeregisterVolumeRequest{Namespace: "till", Id: "theirs"})
	check.NoError(t, err)
	h.fake.mu.Lock()
	h.fake.snapshots = append(h.fake.snapshots, storage.Snapshot{ID: "nobodys", VolumeExternalID: "gone", Ready: true})
	h.fake.mu.Unlock()

	shop := h.as(t, "shop", `namespace "shop" { policy = "write" }
		plugin { policy = "read" }`)
	trusted := h.as(t, "trusted", `namespace "shop" { capabilities = ["csi-write-volume", "csi-foreign-snapshots"] }`)
	create := func(c *api.Client, id string, source func(s *hostv1.VolumeSpec)) error {
		_, err := c.Volumes.CreateVolume(h.ctx, &hostv1.CreateVolumeRequest{Spec: spec(id, inNamespace("shop"), source)})
		return err
	}
	snapshot := func(id string) func(s *hostv1.VolumeSpec) {
		return func(s *hostv1.VolumeSpec) { s.SnapshotId = id }
	}
	clone := func(s *hostv1.VolumeSpec) { s.CloneId = theirs }
	for _, s := range taken {
		for _, c := range []*api.Client{shop, trusted} {
			wantError(t, create(c, "stolen", snapshot(s.ID)), connect.CodePermissionDenied, "csi-read-volume",
				"on the namespace that has registered")
		}
	}
	const foreign = `or, if none has, "csi-foreign-snapshots" on namespace "shop" is missing`
	wantError(t, create(shop, "stolen", snapshot("nobodys")), connect.CodePermissionDenied, foreign)
	wantError(t, create(shop, "stolen", clone), connect.CodePermissionDenied, foreign)
	if len(h.fake.volumes) != 1 {
		t.Errorf("the driver has the volumes %v", h.fake.volumes)
	}
	list, err := shop.Volumes.ListSnapshots(h.ctx, &hostv1.ListSnapshotsRequest{PluginId: "fake"})
	if check.NoError(t, err); len(list.GetSnapshots()) != 1 || list.GetSnapshots()[0].GetSnapshotId() != "nobodys" {
		t.Errorf("listed %v", list.GetSnapshots())
	}

	check.NoError(t, create(trusted, "a", snapshot("nobodys")))
	check.NoError(t, create(trusted, "b", clone))
	// In its own namespace each is used by its name and by the driver's id.
	till := h.as(t, "till", `namespace "till" { policy = "write" }`)
	for i, id := range []string{"s", taken[0].ID, taken[1].ID, controllers.MemberName("g", "theirs")} {
		_, err := till.Volumes.CreateVolume(h.ctx, &hostv1.CreateVolumeRequest{
			Spec: spec(fmt.Sprint("restored-", i), inNamespace("till"), snapshot(id)),
		})
		check.NoError(t, err)
	}
	// A group's names go with it.
	_, err = h.client.Volumes.DeleteGroupSnapshot(h.ctx, &hostv1.DeleteGroupSnapshotRequest{
		PluginId: "fake", GroupId: taken[1].GroupID, SnapshotIds: []string{taken[1].ID},
	})
	check.NoError(t, err)
	wantError(t, create(shop, "stolen", snapshot(taken[1].ID)), connect.CodePermissionDenied, foreign)
}

// next returns the next event of a stream, or the error that ended it.
func next(stream *connect.ServerStreamForClient[hostv1.EventsResponse]) (*hostv1.Event, error) {
	if stream.Receive() {
		return stream.Msg().GetEvent(), nil
	}
	return nil, stream.Err()
}

func TestEventsAreFiltered(t *testing.T) {
	h := openACLHost(t)
	tell := func(topic, subject string, details ...string) {
		e := events.Event{Topic: topic, Type: "test", Subject: subject, Details: map[string]string{}}
		if len(details) > 0 {
			e.Details["workload"], e.Details["volume"] = details[0], details[0]
		}
		h.bus.Publish(e)
	}
	tellAll := func() {
		tell(events.TopicClaim, "till/v")
		tell(events.TopicClaim, "shop/v")
		tell(events.TopicVolume, "v")
		tell(events.TopicWorkload, "till/w")
		tell(events.TopicWorkload, "shop/w")
		tell(events.TopicWorkload, "w")
		tell(events.TopicService, "s-till", "till/w")
		tell(events.TopicService, "s-shop", "shop/w")
		tell(events.TopicService, "east")
		tell(events.TopicDriver, "d")
		tell(events.TopicPlugin, "p")
		tell(events.TopicSnapshot, "snap")
		tell(events.TopicSnapshot, "snap-till", "till/v")
		tell(events.TopicDevice, "g")
		tell(events.TopicAgent, "a")
		tell("a-new-topic", "n")
	}
	const all = "claim till/v, claim shop/v, volume v, workload till/w, workload shop/w, workload w, service s-till, service s-shop, " +
		"service east, driver d, plugin p, snapshot snap, snapshot snap-till, device g, agent a, a-new-topic n"
	for name, c := range map[string]struct {
		client *api.Client
		want   string
	}{
		"root":    {h.client, all},
		"none":    {h.with(t, mustCreate(t, h, "none", `namespace "elsewhere" { policy = "write" }`)), ""},
		"shop":    {h.as(t, "shop", `namespace "shop" { policy = "read" }`), "claim shop/v, workload shop/w, service s-shop"},
		"default": {h.as(t, "default", `namespace "default" { policy = "read" }`), "volume v, workload w"},
		"plugins": {h.as(t, "plugins", `plugin { policy = "read" }`), "driver d, plugin p, snapshot snap"},
		"nodes":   {h.as(t, "nodes", `node { policy = "read" }`), "device g"},
		"agent":   {h.as(t, "agent", `agent { policy = "read" }`), "service east, agent a, a-new-topic n"},
	} {
		t.Run(name, func(t *testing.T) {
			stream := check.Must(c.client.Agent.Events(h.ctx, &hostv1.EventsRequest{Follow: true, Recent: 1000}))(t)
			defer stream.Close()
			tellAll()
			// The last event, which everyone may see.
			last := fmt.Sprintf("end-%s", name)
			h.bus.Publish(events.Event{Topic: events.TopicAgent, Type: events.TypeLagged, Subject: last})
			var got []string
			for {
				e := check.Must(next(stream))(t)
				if e.Subject == last {
					break
				}
				if e.Type == "test" {
					got = append(got, e.Topic+" "+e.Subject)
				}
			}
			// Events of the other streams came before.
			if text := strings.Join(got, ", "); text != c.want && !strings.HasSuffix(text, ", "+c.want) {
				t.Errorf("got %s\nwant %s", text, c.want)
			}
		})
	}
}

// A stream ends when its token is deleted or expires, even if nothing happens.
func TestStreamsEndWithTheirToken(t *testing.T) {
	h := openACLHost(t)
	client, token := h.token(t, "agents", `agent { policy = "read" }`, nil)
	h.bus.Publish(events.Event{Topic: events.TopicAgent, Subject: "first"})
	stream, err := client.Agent.Events(h.ctx, &hostv1.EventsRequest{Follow: true, Recent: 1})
	check.NoError(t, err)
	defer stream.Close()
	if e, err := next(stream); err != nil || e.Subject != "first" {
		t.Fatalf("%v, %v", e, err)
	}
	_, err = h.client.ACL.DeleteACLToken(h.ctx, &hostv1.DeleteACLTokenRequest{Accessor: token.Accessor})
	check.NoError(t, err)
	h.bus.Publish(events.Event{Topic: events.TopicAgent, Subject: "second"})
	e, err := next(stream)
	if wantError(t, err, connect.CodeUnauthenticated, "is not known here"); e != nil {
		t.Errorf("a deleted token sees %v", e)
	}

	client, _ = h.token(t, "agents", `agent { policy = "read" }`, durationpb.New(300*time.Millisecond))
	brief, err := client.Agent.Events(h.ctx, &hostv1.EventsRequest{Follow: true})
	check.NoError(t, err)
	defer brief.Close()
	_, err = next(brief)
	wantError(t, err, connect.CodeUnauthenticated, "has expired")
	_, err = client.Agent.Status(h.ctx, &hostv1.StatusRequest{})
	wantError(t, err, connect.CodeUnauthenticated, "has expired")
}

func TestStatusIsCut(t *testing.T) {
	h := openACLHost(t)
	h.create(t, spec("v"))
	h.start(t, "w", "v")
	read := func(c *api.Client) *hostv1.StatusResponse {
		t.Helper()
		s := check.Must(c.Agent.Status(h.ctx, &hostv1.StatusRequest{}))(t)
		return s
	}
	if s := read(h.client); len(s.Plugins) != 1 || len(s.Drivers) != 1 || len(s.Leftovers) != 1 || len(s.Devices) != 1 {
		t.Errorf("root sees %v", s)
	}
	if s := read(h.as(t, "agent", `agent { policy = "read" }`)); len(s.Plugins)+len(s.Drivers)+len(s.Leftovers)+
		len(s.Devices) != 0 || s.Name != "n1" || s.Workloads["running"] != 1 {
		t.Errorf("who may read the agent only sees %v", s)
	}
	_, err := h.as(t, "other", `node { policy = "write" }`).Agent.Status(h.ctx, &hostv1.StatusRequest{})
	wantError(t, err, connect.CodePermissionDenied, `policy "read" for agent is missing`)
	h.stop(t, "w")
}

func TestAnonymous(t *testing.T) {
	h := openACLHost(t, func(c *parts) { c.SocketRoot = true })
	h.cfg.SocketRoot = false // from here on root has no rights
	_, err := h.client.Drivers.ListDrivers(h.ctx, &hostv1.ListDriversRequest{})
	wantError(t, err, connect.CodePermissionDenied, "ACLs are on and this call has no token", "PANNIER_TOKEN")
	boot, err := h.client.ACL.BootstrapACL(h.ctx, &hostv1.BootstrapACLRequest{})
	check.NoError(t, err)
	operator := h.with(t, boot.Secret)
	_, err = operator.ACL.PutACLPolicy(h.ctx,
		&hostv1.PutACLPolicyRequest{Name: "anonymous", Rules: `plugin { policy = "list" }`})
	check.NoError(t, err)
	_, err = h.client.Drivers.ListDrivers(h.ctx, &hostv1.ListDriversRequest{})
	check.NoError(t, err)
	_, err = h.client.Drivers.GetDriver(h.ctx, &hostv1.GetDriverRequest{Id: "fake"})
	wantError(t, err, connect.CodePermissionDenied, `policy "read" for plugin is missing`)
	self, err := h.client.ACL.GetACLSelf(h.ctx, &hostv1.GetACLSelfRequest{})
	if check.NoError(t, err); self.Management || self.Token != nil || len(self.Policies) != 1 {
		t.Errorf("without a token: %v", self)
	}
}

func TestBootstrapOnce(t *testing.T) {
	h := openACLHost(t)
	boot, err := h.client.ACL.BootstrapACL(h.ctx, &hostv1.BootstrapACLRequest{})
	check.NoError(t, err)
	first := h.with(t, boot.Secret)
	if self, err := first.ACL.GetACLSelf(h.ctx, &hostv1.GetACLSelfRequest{}); err != nil ||
		!self.Management || self.Token.Name != "bootstrap" {
		t.Errorf("%v, %v", self, err)
	}
	_, err = h.client.ACL.BootstrapACL(h.ctx, &hostv1.BootstrapACLRequest{})
	path := filepath.Join(h.cfg.Agent.DataDir, "acl-bootstrap-reset")
	wantError(t, err, connect.CodeFailedPrecondition, "bootstrapped before", path, `server "n1"`, "pannier acl bootstrap")
	if err == nil {
		return
	}
	var reset uint64
	_, after, _ := strings.Cut(err.Error(), "write ")
	_, scanErr := fmt.Sscan(after, &reset)
	check.NoError(t, scanErr)
	check.NoError(t, os.WriteFile(path, []byte(fmt.Sprintln(reset+1)), 0o600))
	_, err = h.client.ACL.BootstrapACL(h.ctx, &hostv1.BootstrapACLRequest{})
	wantError(t, err, connect.CodeFailedPrecondition)
	check.NoError(t, os.WriteFile(path, []byte(fmt.Sprintln(reset)), 0o600))
	_, err = h.client.ACL.BootstrapACL(h.ctx, &hostv1.BootstrapACLRequest{})
	check.NoError(t, err)
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the file is left: %v", err)
	}
	check.NoError(t, os.WriteFile(path, []byte(fmt.Sprintln(reset)), 0o600))
	_, err = h.client.ACL.BootstrapACL(h.ctx, &hostv1.BootstrapACLRequest{})
	wantError(t, err, connect.CodeFailedPrecondition)
	// Existing tokens stay valid.
	_, err = first.Agent.Status(h.ctx, &hostv1.StatusRequest{})
	check.NoError(t, err)
}

func TestPoliciesRolesAndTokens(t *testing.T) {
	h := openACLHost(t)
	put := func(name, rules string) error {
		_, err := h.client.ACL.PutACLPolicy(h.ctx, &hostv1.PutACLPolicyRequest{Name: name, Rules: rules})
		return err
	}
	wantError(t, put("p", "quota {}"), connect.CodeInvalidArgument,
		`ACL policy "p": invalid policy: line 1: unsupported block "quota"`)
	wantError(t, put("a b", `node { policy = "read" }`), connect.CodeInvalidArgument, "name")
	check.NoError(t, put("p", `node { policy = "read" }`))
	check.NoError(t, put("q", `plugin { policy = "list" }`))
	role := func(policies ...string) error {
		_, err := h.client.ACL.PutACLRole(h.ctx, &hostv1.PutACLRoleRequest{Name: "r", Policies: policies})
		return err
	}
	wantError(t, role("none"), connect.CodeNotFound, "none")
	wantError(t, role(), connect.CodeInvalidArgument, "policies")
	check.NoError(t, role("p"))
	create := func(req *hostv1.CreateACLTokenRequest) (*hostv1.CreateACLTokenResponse, error) {
		return h.client.ACL.CreateACLToken(h.ctx, req)
	}
	for says, req := range map[string]*hostv1.CreateACLTokenRequest{
		"at least one":    {},
		"has none":        {Type: "management", Policies: []string{"p"}},
		"is none of":      {Type: "king", Policies: []string{"p"}},
		"nothing else":    {Type: "join-node", Policies: []string{"p"}, Ttl: durationpb.New(time.Hour)},
		"to join expires": {Type: "join-server"},
		"above 0":         {Policies: []string{"p"}, Ttl: durationpb.New(-time.Second)},
		"must be above":   {Policies: []string{"p"}, Ttl: &durationpb.Duration{}},
	} {
		_, err := create(req)
		wantError(t, err, connect.CodeInvalidArgument, says)
	}
	_, err := create(&hostv1.CreateACLTokenRequest{Roles: []string{"none"}})
	wantError(t, err, connect.CodeNotFound, "none")

	made, err := create(&hostv1.CreateACLTokenRequest{
		Name: "t", Roles: []string{"r"}, Policies: []string{"q"},
		Ttl: durationpb.New(time.Hour),
	})
	check.NoError(t, err)
	client := h.with(t, made.Secret)
	devices := func() error {
		_, err := client.Devices.ListDevices(h.ctx, &hostv1.ListDevicesRequest{})
		return err
	}
	check.NoError(t, devices())
	self := check.Must(client.ACL.GetACLSelf(h.ctx, &hostv1.GetACLSelfRequest{}))(t)
	if m := self; m.Management || m.Token.Accessor != made.Token.Accessor || len(m.Policies) != 2 ||
		m.Policies[0].Rules != `node { policy = "read" }` {
		t.Errorf("self: %v", m)
	}
	own, err := client.ACL.ListACLPolicies(h.ctx, &hostv1.ListACLPoliciesRequest{})
	check.NoError(t, put("hidden", `agent { policy = "read" }`))
	if check.NoError(t, err); len(own.Policies) != 2 {
		t.Errorf("own policies: %v", own.Policies)
	}
	_, err = client.ACL.GetACLPolicy(h.ctx, &hostv1.GetACLPolicyRequest{Name: "hidden"})
	wantError(t, err, connect.CodePermissionDenied, "a management token is missing")

	// Delete the role, then the policy, then the token: each counts at once.
	check.NoError(t, role("q"))
	wantError(t, devices(), connect.CodePermissionDenied)
	check.NoError(t, role("p"))
	check.NoError(t, devices())
	_, err = h.client.ACL.DeleteACLPolicy(h.ctx, &hostv1.DeleteACLPolicyRequest{Name: "p"})
	check.NoError(t, err)
	wantError(t, devices(), connect.CodePermissionDenied)
	_, err = h.client.ACL.DeleteACLRole(h.ctx, &hostv1.DeleteACLRoleRequest{Name: "r"})
	check.NoError(t, err)
	_, err = h.client.ACL.DeleteACLToken(h.ctx, &hostv1.DeleteACLTokenRequest{Accessor: made.Token.Accessor})
	check.NoError(t, err)
	wantError(t, devices(), connect.CodeUnauthenticated)
	for _, err := range []error{
		second(h.client.ACL.DeleteACLToken(h.ctx, &hostv1.DeleteACLTokenRequest{Accessor: made.Token.Accessor})),
		second(h.client.ACL.DeleteACLRole(h.ctx, &hostv1.DeleteACLRoleRequest{Name: "r"})),
		second(h.client.ACL.DeleteACLPolicy(h.ctx, &hostv1.DeleteACLPolicyRequest{Name: "p"})),
		second(h.client.ACL.GetACLToken(h.ctx, &hostv1.GetACLTokenRequest{Accessor: "x"})),
		second(h.client.ACL.GetACLRole(h.ctx, &hostv1.GetACLRoleRequest{Name: "x"})),
		second(h.client.ACL.GetACLPolicy(h.ctx, &hostv1.GetACLPolicyRequest{Name: "x"})),
	} {
		wantError(t, err, connect.CodeNotFound)
	}
	if text := h.log.String(); strings.Contains(text, made.Secret) {
		t.Error("the log has a secret")
	}
}

func second[T any](_ T, err error) error { return err }

// With ACLs off every caller may do everything, and no tokens or policies can be made that would count later.
func TestACLsOff(t *testing.T) {
	h := openHost(t)
	if !strings.Contains(h.log.String(), "ACLs are off") {
		t.Error("the agent does not say that ACLs are off")
	}
	_, err := h.with(t, "whatever").Volumes.ListVolumes(h.ctx, &hostv1.ListVolumesRequest{})
	check.NoError(t, err)
	_, err = h.client.ACL.BootstrapACL(h.ctx, &hostv1.BootstrapACLRequest{})
	wantError(t, err, connect.CodeFailedPrecondition, "ACLs are off", "acl { enabled = true }")
}

// The agent that forwards a call names the original caller. Only servers are believed.
func TestCallersOfPassedOnCalls(t *testing.T) {
	const root, alice, ops, node = "root (uid 0) on s2", "alice (uid 1000) on s2", "pannier://dc1/cli/ops",
		"pannier://dc1/node/n7"
	cert := func(role pki.Role) *transport.Peer { return &transport.Peer{Name: "x", Role: role, DC: "dc1"} }
	for _, c := range []struct {
		caller   call.Caller
		operates bool
		who      string
	}{
		{call.Caller{Peer: call.Peer{UID: 0}}, true, "root"},
		{call.Caller{Peer: call.Peer{UID: 4242}}, false, "uid 4242"},
		{call.Caller{Peer: call.UnknownPeer(nil)}, false, "uid 4294967295"},
		{call.Caller{Cert: cert(pki.CLI)}, true, "pannier://dc1/cli/x"},
		{call.Caller{Cert: cert(pki.Server)}, true, "pannier://dc1/server/x"},
		{call.Caller{Cert: cert(pki.Node)}, false, "pannier://dc1/node/x"},
		{call.Caller{Cert: cert(pki.Server), Asker: root}, true, root},
		{call.Caller{Cert: cert(pki.Server), Asker: ops}, true, ops},
		{call.Caller{Cert: cert(pki.Server), Asker: alice}, false, alice},
		{call.Caller{Cert: cert(pki.Server), Asker: node}, false, node},
		{call.Caller{Cert: cert(pki.Server), Asker: alice + " " + root}, false, alice + " " + root},
		{call.Caller{Cert: cert(pki.Node), Asker: root}, false, "pannier://dc1/node/x for " + root},
		{call.Caller{Cert: cert(pki.Server), Asker: node + " for " + root}, false, node + " for " + root},
		{call.Caller{Cert: cert(pki.Server), Asker: root, Identity: acl.Identity{Accessor: "a", Name: "ci"}}, true, `token "ci"`},
	} {
		c.caller.Root = c.caller.Cert == nil && access{self: 77}.owns(c.caller.Peer)
		if got := c.caller.Operates(); got != c.operates {
			t.Errorf("%s operates: %v", c.who, got)
		}
		if got := c.caller.Who(); got != c.who {
			t.Errorf("%q is %q", c.who, got)
		}
	}
}

// openOverTLS opens a host with ACLs and a TLS port. call returns clients with a certificate and a token.
func openOverTLS(t *testing.T) (h *host,
	over func(role pki.Role, secret string) (hostv1connect.DeviceServiceClient, hostv1connect.PluginServiceClient,
		hostv1connect.ACLServiceClient),
) {
	t.Helper()
	authority := pkitest.New(t)
	port, err := transport.Open(t.Context(),
		transport.Config{Addr: "127.0.0.1:0", Certs: authority.Certs(t, pki.Server, "n1"), Logger: hclog.NewNullLogger()})
	check.NoError(t, err)
	t.Cleanup(func() { check.NoError(t, port.Close()) })
	h = openACLHost(t, func(c *parts) { c.Port = port })
	return h, func(role pki.Role, secret string) (hostv1connect.DeviceServiceClient, hostv1connect.PluginServiceClient,
		hostv1connect.ACLServiceClient,
	) {
		transport := &http.Transport{TLSClientConfig: authority.Certs(t, role, "ops").Client(pki.Server, "n1", "h2",
			"http/1.1"), ForceAttemptHTTP2: true}
		t.Cleanup(transport.CloseIdleConnections)
		client, url := &http.Client{Transport: transport}, "https://"+port.Addr().String()
		with := connect.WithInterceptors(connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
			return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
				if secret != "" {
					req.Header().Set(api.TokenHeader, secret)
				}
				return next(ctx, req)
			}
		}))
		return hostv1connect.NewDeviceServiceClient(client, url, with), hostv1connect.NewPluginServiceClient(client, url,
			with), hostv1connect.NewACLServiceClient(client, url, with)
	}
}

// Over TLS a certificate of any role allows a connection, and the token says what the caller may do.
func TestCallersOverTLS(t *testing.T) {
	h, over := openOverTLS(t)
	secret := mustCreate(t, h, "nodes", `node { policy = "read" }
		plugin { policy = "write" }`)
	for _, role := range []pki.Role{pki.CLI, pki.Node, pki.Server} {
		anyone, _, _ := over(role, "")
		_, err := anyone.ListDevices(h.ctx, &hostv1.ListDevicesRequest{})
		wantError(t, err, connect.CodePermissionDenied, "has no token")
		devices, plugins, _ := over(role, secret)
		_, err = devices.ListDevices(h.ctx, &hostv1.ListDevicesRequest{})
		check.NoError(t, err)
		// Even a caller with all rights on plugins cannot have a file run or removed remotely.
		_, err = plugins.VerifyPlugin(h.ctx, &hostv1.VerifyPluginRequest{Path: "/bin/true"})
		wantError(t, err, connect.CodePermissionDenied, `token "nodes" may not have the agent run a file`)
		_, err = plugins.RemovePlugin(h.ctx, &hostv1.RemovePluginRequest{Name: "p", Files: true})
		wantError(t, err, connect.CodePermissionDenied, `token "nodes" may not have the agent remove files`)
	}
	_, _, fromNode := over(pki.Node, "")
	_, err := fromNode.BootstrapACL(h.ctx, &hostv1.BootstrapACLRequest{})
	wantError(t, err, connect.CodePermissionDenied, "may not make the first token", "with a certificate of the role cli")
	// A server that forwards a node's call does not lend it the rights of its own certificate.
	_, _, fromServer := over(pki.Server, "")
	passed := withHeader(h.ctx, http.Header{call.ForwardedHeader: {"pannier://dc1/node/n7"}})
	_, err = fromServer.BootstrapACL(passed, &hostv1.BootstrapACLRequest{})
	wantError(t, err, connect.CodePermissionDenied, "pannier://dc1/node/n7 may not make the first token")
	_, _, fromCLI := over(pki.CLI, "")
	_, err = fromCLI.BootstrapACL(h.ctx, &hostv1.BootstrapACLRequest{})
	check.NoError(t, err)
}

// TestABoundNodeThroughAServer: whichever way a call of a bound node comes to the leader, its token opens no more than
// the node's namespaces.
func TestABoundNodeThroughAServer(t *testing.T) {
	h, over := openOverTLS(t)
	h.putNode(t, "ops")
	check.Must(cluster.Apply(h.ctx, h.ledger, &command.SetNodeDuty{Name: "ops", Namespaces: &[]string{"dev"}}))(t)
	made := check.Must(h.client.ACL.CreateACLToken(h.ctx, &hostv1.CreateACLTokenRequest{Name: "all", Type: "management"}))(t)
	const node = "pannier://dc1/node/ops"
	for _, c := range []struct {
		as    pki.Role
		asker string // what the forwarding agent says; empty: the call is not forwarded
		bound bool
	}{
		{pki.Node, "", true},
		{pki.Node, "root (uid 0) on ops", true},
		{pki.Node, "pannier://dc1/cli/boss", true},
		{pki.Server, node, true},
		{pki.Server, node + " for root (uid 0) on ops", true},
		{pki.Server, node + " for pannier://dc1/cli/boss", true},
		{pki.Server, node + " for " + strings.Repeat("x", 2000), true},
		{pki.Server, "root (uid 0) on n1", false},
		{pki.Server, "pannier://dc1/cli/boss", false},
		{pki.CLI, node, false}, // others' headers do not count
	} {
		_, _, client := over(c.as, made.GetSecret())
		header := http.Header{}
		if c.asker != "" {
			header.Set(call.ForwardedHeader, c.asker)
		}
		_, err := client.ListACLTokens(withHeader(h.ctx, header), &hostv1.ListACLTokensRequest{})
		if c.bound {
			wantError(t, err, connect.CodePermissionDenied, `node "ops"`, "bound to the namespaces")
		} else {
			check.NoError(t, err)
		}
	}
}

// A call that makes a token may be forwarded repeatedly if an answer was lost. It makes one token, and each answer
// has its secret.
func TestOneCallMakesOneToken(t *testing.T) {
	h, over := openOverTLS(t)
	_, _, server := over(pki.Server, "")
	passedOn := func(key string) (header http.Header) {
		return http.Header{call.ForwardedHeader: {"pannier://dc1/cli/ops"}, callHeader: {key}}
	}
	var first [2]*hostv1.BootstrapACLResponse
	for n := range first {
		resp := check.Must(server.BootstrapACL(withHeader(h.ctx, passedOn("once")), &hostv1.BootstrapACLRequest{}))(t)
		first[n] = resp
	}
	if !proto.Equal(first[0], first[1]) {
		t.Errorf("one call made the tokens %v and %v", first[0].GetToken(), first[1].GetToken())
	}
	_, err := server.BootstrapACL(withHeader(h.ctx, passedOn("again")), &hostv1.BootstrapACLRequest{})
	wantError(t, err, connect.CodeFailedPrecondition, "bootstrap")

	_, _, server = over(pki.Server, first[0].GetSecret())
	create := func(client hostv1connect.ACLServiceClient, name string, header http.Header) *hostv1.CreateACLTokenResponse {
		t.Helper()
		resp, err := client.CreateACLToken(withHeader(h.ctx, header),
			&hostv1.CreateACLTokenRequest{Name: name, Type: "management", Ttl: durationpb.New(time.Hour)})
		check.NoError(t, err)
		return resp
	}
	one := create(server, "one", passedOn("one"))
	if again := create(server, "one", passedOn("one")); !proto.Equal(one, again) {
		t.Errorf("one call made the tokens %v and %v", one.GetToken(), again.GetToken())
	}
	if other := create(server, "other", passedOn("other")); other.GetSecret() == one.GetSecret() ||
		other.GetToken().GetAccessor() == one.GetToken().GetAccessor() {
		t.Errorf("another call made the same token %v", other.GetToken())
	}
	// An original caller cannot set the call's key.
	_, _, direct := over(pki.CLI, first[0].GetSecret())
	if other := create(direct, "one", passedOn("one")); other.GetSecret() == one.GetSecret() {
		t.Error("a caller chose the secret of a token")
	}
}
