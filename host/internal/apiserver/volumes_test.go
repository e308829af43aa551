package apiserver

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

// Who may define volumes still cannot choose how the host's root mounts them: the driver's operator allows the flags.
func TestMountFlagsOfADefinition(t *testing.T) {
	needsRoot(t)
	h := openHost(t)
	for name, flags := range map[string][]string{
		"errors": {"errors=panic"}, "suid": {"noatime,suid"}, "dev": {"noatime", "dev"}, "PASSWORD": {"PASSWORD=x"},
		"vers": {"noatime", "vers=4\nro"},
	} {
		s := spec("mysql", func(s *hostv1.VolumeSpec) { s.MountOptions.MountFlags = flags })
		_, err := h.client.Volumes.CreateVolume(h.ctx, &hostv1.CreateVolumeRequest{Spec: s})
		says := []string{`volume "mysql"`, `"` + name + `"`, `driver "fake"`, "allowed_mount_flags"}
		wantError(t, err, connect.CodeFailedPrecondition, says...)
		s.ExternalId = "vol-1"
		_, err = h.client.Volumes.RegisterVolume(h.ctx, &hostv1.RegisterVolumeRequest{Spec: s})
		wantError(t, err, connect.CodeFailedPrecondition, says...)
	}
	if len(h.fake.volumes) > 0 {
		t.Errorf("the driver made %v", h.fake.volumes)
	}
	h.create(t, spec("mysql", func(s *hostv1.VolumeSpec) {
		s.MountOptions.MountFlags = []string{"noatime,nodiratime", "vers=4.2", secretFlag}
	}))
}

// A check refuses what a create refuses, and neither calls the driver nor changes the ledger.
func TestCheckVolume(t *testing.T) {
	needsRoot(t)
	h := openHost(t)
	check := func(s *hostv1.VolumeSpec) (*hostv1.CheckVolumeResponse, error) {
		return h.client.Volumes.CheckVolume(h.ctx, &hostv1.CheckVolumeRequest{Spec: s})
	}
	named := spec("mysql", func(s *hostv1.VolumeSpec) { s.Name = "The database" })
	resp, err := check(named)
	if err != nil || resp.GetExists() || !strings.HasPrefix(resp.GetDriverName(), "The-database-") {
		t.Fatalf("%v, %v", resp, err)
	}
	if list, err := h.client.Volumes.ListVolumes(h.ctx, &hostv1.ListVolumesRequest{}); err != nil ||
		len(list.GetVolumes())+len(h.fake.volumes) > 0 {
		t.Errorf("the check left %v and %v, %v", list.GetVolumes(), h.fake.volumes, err)
	}
	for says, change := range map[string]func(*hostv1.VolumeSpec){
		"external_id":         func(s *hostv1.VolumeSpec) { s.ExternalId = "vol-1" },
		"capability":          func(s *hostv1.VolumeSpec) { s.Capabilities = nil },
		`driver "other"`:      func(s *hostv1.VolumeSpec) { s.PluginId = "other" },
		"allowed_mount_flags": func(s *hostv1.VolumeSpec) { s.MountOptions.MountFlags = []string{"suid"} },
	} {
		if _, err := check(spec("mysql", change)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	h.create(t, named)
	if resp, err := check(named); err != nil || !resp.GetExists() {
		t.Errorf("of a created one: %v, %v", resp, err)
	}
	_, err = check(spec("mysql"))
	wantError(t, err, connect.CodeAlreadyExists, "another definition", "name")
}

func TestAVolumesLife(t *testing.T) {
	needsRoot(t)
	h := openHost(t)
	volumes := h.client.Volumes

	made := h.create(t, spec("mysql"))
	if made.Spec.ExternalId == "" || made.Capacity != 1<<20 || made.Spec.Context["by"] != "fake" ||
		made.Spec.Name != "mysql" ||
		made.Spec.Namespace != "default" || !made.DriverHealthy || made.Provider != "fake.example.com" ||
		made.ProviderVersion != "1.2" {
		t.Errorf("created %v", made)
	}
	asked := h.fake.volumes[made.Spec.ExternalId]
	if asked.Secrets["password"] != secretValue || asked.Capabilities[0].MountFlags[0] != secretFlag {
		t.Errorf("the driver was asked %+v", asked)
	}
	if again := h.create(t, spec("mysql")); again.Spec.ExternalId != made.Spec.ExternalId ||
		again.ModifyIndex != made.ModifyIndex || len(h.fake.volumes) != 1 {
		t.Errorf("created again: %v", again)
	}

	w, _ := h.start(t, "db", "mysql")
	got, err := volumes.GetVolume(h.ctx, &hostv1.GetVolumeRequest{Id: "mysql"})
	check.NoError(t, err)
	v := got.Volume
	if len(v.Claims) != 1 || v.Claims[0].Workload != "db" || v.Claims[0].Node != "n1" || v.Claims[0].State != "taken" ||
		v.Claims[0].Index == 0 || v.AccessMode != "single-node-writer" {
		t.Errorf("claimed: %v", v)
	}
	if u := got.Usage; u.GetBytesUsed() != 4 || u.GetInodesTotal() != 3 || u.GetCondition() != "fine" {
		t.Errorf("usage %v", u)
	}
	h.fake.setFailure("stats", errors.New("slow"))
	if got, err = volumes.GetVolume(h.ctx, &hostv1.GetVolumeRequest{Id: "mysql"}); err != nil ||
		got.Usage != nil {
		t.Errorf("usage that the driver does not tell: %v, %v", got.Usage, err)
	}

	grown, err := volumes.ExpandVolume(h.ctx, &hostv1.ExpandVolumeRequest{Id: "mysql", CapacityMin: 2 << 20})
	check.NoError(t, err)
	if grown.Volume.Capacity != 2<<20 || grown.Volume.Spec.CapacityMin != 2<<20 || len(h.fake.expanded) != 1 ||
		h.fake.expanded[0].VolumePath != w.Mounts[0].HostPath {
		t.Errorf("grown %v, mounts %v", grown.Volume, h.fake.expanded)
	}
	// The grown volume still fits the first definition.
	h.create(t, spec("mysql"))

	_, err = volumes.DeleteVolume(h.ctx, &hostv1.DeleteVolumeRequest{Id: "mysql"})
	wantError(t, err, connect.CodeFailedPrecondition, `workload "db" on node "n1"`, "cannot be deleted")
	_, err = volumes.DeregisterVolume(h.ctx, &hostv1.DeregisterVolumeRequest{Id: "mysql"})
	wantError(t, err, connect.CodeFailedPrecondition, `workload "db" on node "n1"`)
	if len(h.fake.deleted) > 0 {
		t.Errorf("deleted at the driver while in use: %v", h.fake.deleted)
	}

	h.stop(t, "db")
	h.fake.setFailure("delete", driverSays(codes.FailedPrecondition, "a snapshot needs it"))
	_, err = volumes.DeleteVolume(h.ctx, &hostv1.DeleteVolumeRequest{Id: "mysql"})
	wantError(t, err, connect.CodeFailedPrecondition, "a snapshot needs it", `delete volume "mysql"`, `driver "fake"`)
	h.fake.setFailure("delete", nil)
	_, err = volumes.DeleteVolume(h.ctx,
		&hostv1.DeleteVolumeRequest{Id: "mysql", Secrets: map[string]string{"password": "new"}})
	check.NoError(t, err)
	if len(h.fake.volumes) != 0 || h.fake.secrets["password"] != "new" {
		t.Errorf("deleted: %v, with %v", h.fake.volumes, h.fake.secrets)
	}
	_, err = volumes.GetVolume(h.ctx, &hostv1.GetVolumeRequest{Id: "mysql"})
	wantError(t, err, connect.CodeNotFound, "mysql")
}

func TestCreateRefusesAnotherDefinition(t *testing.T) {
	h := openHost(t)
	h.create(t, spec("mysql"))
	for field, change := range map[string]func(s *hostv1.VolumeSpec){
		"plugin_id":        func(s *hostv1.VolumeSpec) { s.PluginId = "other" },
		"capacity_min":     func(s *hostv1.VolumeSpec) { s.CapacityMin = 5 << 20 },
		"capacity_max":     func(s *hostv1.VolumeSpec) { s.CapacityMin, s.CapacityMax = 0, 10 },
		"capability":       func(s *hostv1.VolumeSpec) { s.Capabilities[0].AccessMode = "multi-node-multi-writer" },
		"parameters":       func(s *hostv1.VolumeSpec) { s.Parameters["sku"] = "y" },
		"secrets":          func(s *hostv1.VolumeSpec) { s.Secrets["password"] = "another" },
		"mount_options":    func(s *hostv1.VolumeSpec) { s.MountOptions.MountFlags = nil },
		"snapshot_id":      func(s *hostv1.VolumeSpec) { s.SnapshotId = "s" },
		"topology_request": func(s *hostv1.VolumeSpec) { s.TopologyRequest = topologyRequest("r1") },
	} {
		_, err := h.client.Volumes.CreateVolume(h.ctx, &hostv1.CreateVolumeRequest{Spec: spec("mysql", change)})
		wantError(t, err, connect.CodeAlreadyExists, "mysql", field)
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("a secret is in %q", err)
		}
	}
	// The same id in another namespace is another volume.
	other := h.create(t, spec("mysql", func(s *hostv1.VolumeSpec) { s.Namespace = "prod" }))
	if len(h.fake.volumes) != 2 || other.Spec.Namespace != "prod" {
		t.Errorf("%v", h.fake.volumes)
	}
}

func topologyRequest(rack string) *hostv1.TopologyRequest {
	return &hostv1.TopologyRequest{Required: []*hostv1.Topology{{Segments: map[string]string{"rack": rack}}}}
}

// A create is finished by repeating it if the ledger could not be written.
func TestCreateIsFinishedByRepeatingIt(t *testing.T) {
	var broken *brokenLedger
	h := openHost(t, func(c *parts) {
		broken = &brokenLedger{Ledger: c.Ledger}
		c.Volumes.Ledger = broken
	})
	broken.failNext = true
	_, err := h.client.Volumes.CreateVolume(h.ctx, &hostv1.CreateVolumeRequest{Spec: spec("mysql")})
	wantError(t, err, connect.CodeUnavailable, `exists at driver "fake" as "ext-default-mysql-`, "create it again")
	h.create(t, spec("mysql"))
	if len(h.fake.volumes) != 1 {
		t.Errorf("made %v", h.fake.volumes)
	}
}

func TestCreateFromAVolume(t *testing.T) {
	h := openHost(t)
	source := h.create(t, spec("mysql"))
	made := h.create(t, spec("copy", func(s *hostv1.VolumeSpec) { s.CloneId = "mysql" }))
	if got := h.fake.volumes[made.Spec.ExternalId].CloneID; got != source.Spec.ExternalId || made.Spec.CloneId != "mysql" {
		t.Errorf("cloned %q, shown as %q", got, made.Spec.CloneId)
	}
	made = h.create(t, spec("other", func(s *hostv1.VolumeSpec) { s.CloneId = "vol-unregistered" }))
	if got := h.fake.volumes[made.Spec.ExternalId].CloneID; got != "vol-unregistered" {
		t.Errorf("cloned %q", got)
	}
	h.create(t, spec("copy", func(s *hostv1.VolumeSpec) { s.CloneId = "mysql" }))
}

func TestRegister(t *testing.T) {
	h := openHost(t)
	register := func(s *hostv1.VolumeSpec) (*hostv1.RegisterVolumeResponse, error) {
		return h.client.Volumes.RegisterVolume(h.ctx, &hostv1.RegisterVolumeRequest{Spec: s})
	}
	existing := func(s *hostv1.VolumeSpec) { s.ExternalId = "vol-7" }
	h.fake.warnings = []string{"the driver did not confirm"}
	resp, err := register(spec("old", existing))
	check.NoError(t, err)
	if resp.Warnings[0] != h.fake.warnings[0] || resp.Volume.Spec.ExternalId != "vol-7" ||
		h.fake.secrets["password"] != secretValue {
		t.Errorf("registered %v, asked with %v", resp, h.fake.secrets)
	}
	resp, err = register(spec("old", existing, func(s *hostv1.VolumeSpec) { s.Name = "renamed"; s.Secrets = nil }))
	if check.NoError(t, err); resp.Volume.Spec.Name != "renamed" || len(resp.Volume.Spec.Secrets) != 0 {
		t.Errorf("updated: %v", resp.Volume)
	}
	h.fake.setFailure("validate", driverSays(codes.NotFound, "no such volume"))
	_, err = register(spec("gone", existing))
	wantError(t, err, connect.CodeNotFound, `validate volume "gone"`, "vol-7", "no such volume")
	h.fake.setFailure("validate", nil)

	// A create is finished by repeating it if the ledger could not be written.
	made := h.create(t, spec("mysql"))
	resp, err = register(spec("mysql", func(s *hostv1.VolumeSpec) { s.ExternalId, s.Name = made.Spec.ExternalId, "n" }))
	if check.NoError(t, err); resp.Volume.Capacity != made.Capacity {
		t.Errorf("its capacity is %d now", resp.Volume.Capacity)
	}
	_, err = h.client.Volumes.GetVolume(h.ctx, &hostv1.GetVolumeRequest{Id: "gone"})
	wantError(t, err, connect.CodeNotFound)
}

func TestMalformedDefinitionsChangeNothing(t *testing.T) {
	h := openHost(t)
	for field, change := range map[string]func(s *hostv1.VolumeSpec){
		"id":           func(s *hostv1.VolumeSpec) { s.Id = "../etc" },
		"longer":       func(s *hostv1.VolumeSpec) { s.Id = strings.Repeat("x", 129) },
		"namespace":    func(s *hostv1.VolumeSpec) { s.Namespace = "a/b" },
		"type":         func(s *hostv1.VolumeSpec) { s.Type = "host" },
		"plugin_id":    func(s *hostv1.VolumeSpec) { s.PluginId = "" },
		"capability":   func(s *hostv1.VolumeSpec) { s.Capabilities = nil },
		"access_mode":  func(s *hostv1.VolumeSpec) { s.Capabilities[0].AccessMode = "rw" },
		"clone_id":     func(s *hostv1.VolumeSpec) { s.CloneId, s.SnapshotId = "a", "b" },
		"capacity_min": func(s *hostv1.VolumeSpec) { s.CapacityMax = 1 },
		"too large":    func(s *hostv1.VolumeSpec) { s.Parameters["big"] = strings.Repeat("x", 300<<10) },
		"secrets.k":    func(s *hostv1.VolumeSpec) { s.Secrets["k"] = call.Redacted },
		"mount_flags":  func(s *hostv1.VolumeSpec) { s.MountOptions.MountFlags = []string{"password=" + call.Redacted} },
	} {
		s := spec("mysql", change)
		_, err := h.client.Volumes.CreateVolume(h.ctx, &hostv1.CreateVolumeRequest{Spec: s})
		wantError(t, err, connect.CodeInvalidArgument, field)
		s.ExternalId = "vol-1"
		_, err = h.client.Volumes.RegisterVolume(h.ctx, &hostv1.RegisterVolumeRequest{Spec: s})
		wantError(t, err, connect.CodeInvalidArgument, field)
	}
	_, err := h.client.Volumes.CreateVolume(h.ctx, &hostv1.CreateVolumeRequest{})
	wantError(t, err, connect.CodeInvalidArgument, "id")
	_, err = h.client.Volumes.CreateVolume(h.ctx,
		&hostv1.CreateVolumeRequest{Spec: spec("x", func(s *hostv1.VolumeSpec) { s.ExternalId = "e" })})
	wantError(t, err, connect.CodeInvalidArgument, "external_id", "register")
	_, err = h.client.Volumes.RegisterVolume(h.ctx, &hostv1.RegisterVolumeRequest{Spec: spec("x")})
	wantError(t, err, connect.CodeInvalidArgument, "external_id")
	_, err = h.client.Volumes.CreateVolume(h.ctx,
		&hostv1.CreateVolumeRequest{Spec: spec("x", func(s *hostv1.VolumeSpec) { s.PluginId = "other" })})
	wantError(t, err, connect.CodeNotFound, `"other"`, "pannier driver register")
	if len(h.fake.volumes) != 0 {
		t.Errorf("the driver made %v", h.fake.volumes)
	}
}

// A registered volume is where its definition says, as the driver was never asked where to make it.
func TestRegisteredTopology(t *testing.T) {
	needsRoot(t)
	h := openHost(t)
	register := func(racks ...string) (*hostv1.RegisterVolumeResponse, error) { // this host is in r1
		s := spec("old", func(s *hostv1.VolumeSpec) { s.ExternalId, s.TopologyRequest = "vol-7", &hostv1.TopologyRequest{} })
		for _, rack := range racks {
			s.TopologyRequest.Required = append(s.TopologyRequest.Required,
				&hostv1.Topology{Segments: map[string]string{"rack": rack}})
		}
		return h.client.Volumes.RegisterVolume(h.ctx, &hostv1.RegisterVolumeRequest{Spec: s})
	}
	for _, racks := range [][]string{{"r1", "r2"}, nil, {"r1", "r2"}} {
		resp, err := register(racks...)
		check.NoError(t, err)
		if got := resp.Volume.Topologies; len(got) != 2 || got[0].Segments["rack"] != "r1" || got[1].Segments["rack"] != "r2" {
			t.Errorf("registered with %v: it is in %v", racks, got)
		}
	}
	_, err := register("r3")
	wantError(t, err, connect.CodeInvalidArgument, `volume "old"`, "topology_request", "deregister")
}

// Registering a larger definition grows a volume in Nomad. Here it does not, and says so.
func TestRegisteredCapacity(t *testing.T) {
	needsRoot(t)
	h := openHost(t)
	made := h.create(t, spec("mysql"))
	larger := spec("mysql", func(s *hostv1.VolumeSpec) {
		s.ExternalId, s.CapacityMin, s.CapacityMax = made.Spec.ExternalId, 1<<40, 1<<41
	})
	resp, err := h.client.Volumes.RegisterVolume(h.ctx, &hostv1.RegisterVolumeRequest{Spec: larger})
	check.NoError(t, err)
	if w := resp.GetWarnings(); len(w) != 1 || !strings.Contains(w[0], "pannier volume expand") {
		t.Errorf("warnings %q", w)
	}
}

func TestExpandRefuses(t *testing.T) {
	needsRoot(t)
	h := openHost(t)
	h.create(t, spec("mysql"))
	for says, req := range map[string]*hostv1.ExpandVolumeRequest{
		"is missing":            {},
		"negative":              {CapacityMin: -1},
		"do not shrink":         {CapacityMin: 1},
		"below its capacity":    {CapacityMax: 10},
		"is above capacity_max": {CapacityMin: 9 << 20, CapacityMax: 5 << 20},
	} {
		req.Id = "mysql"
		_, err := h.client.Volumes.ExpandVolume(h.ctx, req)
		wantError(t, err, connect.CodeInvalidArgument, says)
	}
	h.start(t, "db", "mysql")
	h.fake.setFailure("expand node", driverSays(codes.Internal, "resize2fs failed"))
	_, err := h.client.Volumes.ExpandVolume(h.ctx, &hostv1.ExpandVolumeRequest{Id: "mysql", CapacityMin: 2 << 20})
	wantError(t, err, connect.CodeInternal, "resize2fs failed", "expand it again")
	if v, err := call.Latest(h.ctx, h.ledger, func(tx *state.ReadTx) (claim.Volume, error) { return tx.Volume(volumeOf("mysql")) }); err != nil || v.Capacity != 2<<20 {
		t.Errorf("at its driver it has grown, the ledger says %d, %v", v.Capacity, err)
	}
	h.fake.setFailure("expand node", nil)
	again, err := h.client.Volumes.ExpandVolume(h.ctx, &hostv1.ExpandVolumeRequest{Id: "mysql", CapacityMin: 2 << 20})
	if check.NoError(t, err); again.Volume.Capacity != 2<<20 || len(h.fake.expanded) != 1 {
		t.Errorf("grown to %d", again.Volume.Capacity)
	}
}

// Secrets, also those of mount flags, are in no answer, no error and no log line.
func TestSecretsDoNotReadBack(t *testing.T) {
	needsRoot(t)
	h := openHost(t)
	made := h.create(t, spec("mysql"))
	if made.Spec.Secrets["password"] != call.Redacted || made.Spec.MountOptions.MountFlags[0] != "password="+call.Redacted ||
		made.Spec.MountOptions.FsType != "ext4" {
		t.Errorf("shown as %v", made.Spec)
	}
	w, _ := h.start(t, "db", "mysql")
	if w.Spec.Volumes[0].MountOptions.MountFlags[0] != "password="+call.Redacted {
		t.Errorf("shown as %v", w.Spec)
	}
	got, err := h.client.Volumes.GetVolume(h.ctx, &hostv1.GetVolumeRequest{Id: "mysql"})
	check.NoError(t, err)
	list, err := h.client.Volumes.ListVolumes(h.ctx, &hostv1.ListVolumesRequest{})
	check.NoError(t, err)
	workloads, err := h.client.Workloads.ListWorkloads(h.ctx, &hostv1.ListWorkloadsRequest{})
	check.NoError(t, err)
	for _, m := range []proto.Message{made, w, got, list, workloads} {
		if text := protojson.Format(m); strings.Contains(text, "hunter2") {
			t.Errorf("a secret is in %s", text)
		}
	}
	h.stop(t, "db")
	if text := h.log.String(); strings.Contains(text, "hunter2") {
		t.Errorf("a secret is in the log:\n%s", text)
	} else if strings.Count(text, "VolumeService/CreateVolume") != 1 || !strings.Contains(text, "object=mysql") ||
		!strings.Contains(text, "uid=0") {
		t.Errorf("the change is not logged once with its object and caller:\n%s", text)
	}
	// Redaction does not change the stored definition.
	if v, err := call.Latest(h.ctx, h.ledger, func(tx *state.ReadTx) (claim.Volume, error) { return tx.Volume(volumeOf("mysql")) }); err != nil || v.MountOptions.Flags[0] != secretFlag ||
		strings.Contains(string(v.SealedSecrets), "hunter2") {
		t.Errorf("in the ledger: %+v, %v", v.MountOptions, err)
	}
}

func TestLists(t *testing.T) {
	needsRoot(t)
	h := openHost(t)
	h.create(t, spec("a"))
	h.create(t, spec("b"))
	c := h.create(t, spec("c", func(s *hostv1.VolumeSpec) { s.Namespace = "prod" }))
	h.start(t, "db", "a")
	ids := func(req *hostv1.ListVolumesRequest) (out string) {
		resp, err := h.client.Volumes.ListVolumes(h.ctx, req)
		check.NoError(t, err)
		for _, v := range resp.Volumes {
			out += v.Spec.Id
		}
		return out
	}
	for want, req := range map[string]*hostv1.ListVolumesRequest{
		"abc": {Namespace: "*"}, "ab": {Namespace: "default"}, "c": {Namespace: "prod"}, "a": {Node: "n1"},
	} {
		if got := ids(req); got != want {
			t.Errorf("%v: %q, want %q", req, got, want)
		}
	}
	_, err := h.client.Volumes.ListVolumes(h.ctx, &hostv1.ListVolumesRequest{Namespace: "a/b"})
	wantError(t, err, connect.CodeInvalidArgument, "namespace")
	_, err = h.client.Volumes.ListVolumes(h.ctx, &hostv1.ListVolumesRequest{PluginId: "other"})
	wantError(t, err, connect.CodeNotFound, `there is "fake"`)

	external, err := h.client.Volumes.ListExternal(h.ctx, &hostv1.ListExternalRequest{PluginId: "fake", PageToken: "p1"})
	if check.NoError(t, err); len(external.Volumes) != 3 || external.NextToken != "next of p1" ||
		!external.Volumes[0].Abnormal {
		t.Errorf("external: %v", external)
	}
	_, err = h.client.Volumes.ListExternal(h.ctx, &hostv1.ListExternalRequest{PluginId: "fake", PerPage: -1})
	wantError(t, err, connect.CodeInvalidArgument, "per_page")

	taken, err := h.client.Volumes.CreateSnapshot(h.ctx, &hostv1.CreateSnapshotRequest{Namespace: "prod", VolumeId: "c"})
	if check.NoError(t, err); taken.Snapshot.Volume != "prod/c" || !taken.Snapshot.Ready ||
		taken.Snapshot.ExternalVolumeId != c.Spec.ExternalId {
		t.Errorf("snapshot %v", taken)
	}
	snapshots, err := h.client.Volumes.ListSnapshots(h.ctx, &hostv1.ListSnapshotsRequest{PluginId: "fake"})
	if check.NoError(t, err); snapshots.Snapshots[0].Volume != "prod/c" || snapshots.NextToken != "more" {
		t.Errorf("snapshots %v", snapshots)
	}
	_, err = h.client.Volumes.DeleteSnapshot(h.ctx, &hostv1.DeleteSnapshotRequest{PluginId: "fake"})
	wantError(t, err, connect.CodeInvalidArgument, "snapshot_id")
	_, err = h.client.Volumes.DeleteSnapshot(h.ctx,
		&hostv1.DeleteSnapshotRequest{PluginId: "fake", SnapshotId: taken.Snapshot.SnapshotId})
	if check.NoError(t, err); len(h.fake.snapshots) != 0 {
		t.Error("the snapshot is still there")
	}
}

func TestDetachAndForcedDeregistration(t *testing.T) {
	needsRoot(t)
	h := openHost(t)
	h.create(t, spec("mysql"))
	h.start(t, "db", "mysql")
	_, err := h.client.Volumes.DetachVolume(h.ctx, &hostv1.DetachVolumeRequest{Id: "mysql", Node: "n2"})
	wantError(t, err, connect.CodeNotFound, "n2")
	_, err = h.client.Volumes.DetachVolume(h.ctx, &hostv1.DetachVolumeRequest{Id: "mysql"})
	wantError(t, err, connect.CodeInvalidArgument, "node")
	done, err := h.client.Volumes.DetachVolume(h.ctx, &hostv1.DetachVolumeRequest{Id: "mysql", Node: "n1"})
	check.NoError(t, err)
	if c := done.Claims; len(c) != 1 || !c[0].Released || c[0].Claim.Workload != "db" || c[0].Message == "" {
		t.Errorf("detached %v", c)
	}

	h.start(t, "db2", "mysql")
	left, err := h.client.Volumes.DeregisterVolume(h.ctx, &hostv1.DeregisterVolumeRequest{Id: "mysql", Force: true})
	if check.NoError(t, err); len(left.LeftBehind) != 1 || left.LeftBehind[0].Workload != "db2" {
		t.Errorf("left behind: %v", left)
	}
	_, err = h.client.Volumes.DeregisterVolume(h.ctx, &hostv1.DeregisterVolumeRequest{Id: "mysql"})
	wantError(t, err, connect.CodeNotFound)
}

// A volume is of the driver that made it, not of another one that runs under the same id.
func TestVolumeOfAnotherProvider(t *testing.T) {
	needsRoot(t)
	h := openHost(t)
	h.create(t, spec("a"))
	v := check.Must(call.Latest(h.ctx, h.ledger,
		func(tx *state.ReadTx) (claim.Volume, error) { return tx.Volume(volumeOf("a")) }))(t)
	if v.Provider != "fake.example.com" {
		t.Fatalf("recorded is %q", v.Provider)
	}
	v.Provider = "other.example.com"
	check.Must(cluster.Apply(h.ctx, h.ledger, &command.RegisterVolume{Volume: v}))(t)
	says := []string{`"fake" is "fake.example.com"`, `"a" is of "other.example.com"`, "pannier volume register"}
	_, _, err := h.tryStart("web", "a", false)
	wantError(t, err, connect.CodeFailedPrecondition, says...)
	remove := func() error {
		_, err := h.client.Volumes.DeleteVolume(h.ctx, &hostv1.DeleteVolumeRequest{Id: "a"})
		return err
	}
	wantError(t, remove(), connect.CodeFailedPrecondition, says...)
	if len(h.fake.deleted) > 0 {
		t.Errorf("another driver was asked to delete %v", h.fake.deleted)
	}
	renamed := spec("a", func(s *hostv1.VolumeSpec) { s.ExternalId = v.ExternalID })
	check.Must(h.client.Volumes.RegisterVolume(h.ctx, &hostv1.RegisterVolumeRequest{Spec: renamed}))(t)
	check.NoError(t, remove())
}

// What a driver's answer lacks is told when the volume is made, and shown until it is registered again.
func TestWarningOfACreation(t *testing.T) {
	needsRoot(t)
	h := openHost(t)
	h.fake.warnings = []string{"its source is not confirmed"}
	for range 2 {
		resp := check.Must(h.client.Volumes.CreateVolume(h.ctx, &hostv1.CreateVolumeRequest{Spec: spec("a")}))(t)
		shown := resp.GetVolume().GetWarnings()
		if !slices.Equal(resp.GetWarnings(), h.fake.warnings) || !slices.Equal(shown, h.fake.warnings) {
			t.Errorf("got %v", resp)
		}
	}
	h.fake.warnings = nil
	known := check.Must(h.client.Volumes.GetVolume(h.ctx, &hostv1.GetVolumeRequest{Id: "a"}))(t).GetVolume()
	seen := spec("a", func(s *hostv1.VolumeSpec) { s.ExternalId = known.GetSpec().GetExternalId() })
	resp := check.Must(h.client.Volumes.RegisterVolume(h.ctx, &hostv1.RegisterVolumeRequest{Spec: seen}))(t)
	if got := resp.GetVolume().GetWarnings(); len(got) > 0 {
		t.Errorf("it still has %q", got)
	}
}
