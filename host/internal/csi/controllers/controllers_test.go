package controllers

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
)

// plugin is a storage plugin in memory that records its calls.
type plugin struct {
	storage.Client // nil: what a test does not expect panics

	mu       sync.Mutex
	attached []storage.AttachRequest
	detached []string
	created  []storage.CreateRequest
	capacity int64              // of what it creates; 0: 7, or what is asked
	volumes  []storage.Volume   // of any call
	err      error              // what every call answers
	rooms    []storage.Capacity // what the questions for room answer; errors afterwards
	asked    []storage.CapacityRequest
	slow     string      // the call that entered and proceed are for; empty: attach
	entered  chan string // where set: the call tells that it began, and ends when proceed lets it
	proceed  chan struct{}
	leases   int
}

func (p *plugin) do(ctx context.Context, _ string, fn func(ctx context.Context, c storage.Client) error) error {
	p.mu.Lock()
	p.leases++
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.leases--
	}()
	return fn(ctx, p)
}

func (p *plugin) begin(ctx context.Context, name string, v storage.Volume) error {
	if p.entered != nil && name == cmp.Or(p.slow, "attach") {
		p.entered <- name
		select {
		case <-p.proceed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.volumes = append(p.volumes, v)

	return p.err
}

func (p *plugin) Attach(ctx context.Context, _ storage.Driver, req storage.AttachRequest) (map[string]string, error) {
	err := p.begin(ctx, "attach", req.Volume)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attached = append(p.attached, req)
	return map[string]string{"device": "/dev/x"}, err
}

func (p *plugin) Detach(ctx context.Context, _ storage.Driver, v storage.Volume, nodeID string) error {
	err := p.begin(ctx, "detach", v)
	p.detached = append(p.detached, nodeID)
	return err
}

func (p *plugin) Create(ctx context.Context, _ storage.Driver, req storage.CreateRequest) (storage.CreateResponse,
	error,
) {
	err := p.begin(ctx, "create", storage.Volume{Secrets: req.Secrets})
	p.created = append(p.created, req)
	return storage.CreateResponse{
		ExternalID: "ext-1", Capacity: cmp.Or(p.capacity, max(7, req.CapacityMin)), Context: map[string]string{"k": "v"},
		AccessibleTopology: []storage.Topology{{"rack": "r1"}},
	}, err
}

func (p *plugin) Delete(ctx context.Context, _ storage.Driver, v storage.Volume) error {
	return p.begin(ctx, "delete", v)
}

// List lists what was created, by tokens that are numbers.
func (p *plugin) List(ctx context.Context, _ storage.Driver, page storage.Page) (list storage.ListResponse, err error) {
	begin, _ := strconv.Atoi(page.Token)
	for i := begin; i < len(p.created); i++ {
		if page.Max > 0 && len(list.Volumes) == page.Max {
			list.Next = strconv.Itoa(i)
			break
		}
		list.Volumes = append(list.Volumes, storage.ListedVolume{ExternalID: p.created[i].Name})
	}
	return list, p.begin(ctx, "list", storage.Volume{})
}

func (p *plugin) Expand(ctx context.Context, _ storage.Driver, req storage.ExpandRequest) (storage.ExpandResponse,
	error,
) {
	return storage.ExpandResponse{Capacity: req.CapacityMin}, p.begin(ctx, "expand", req.Volume)
}

type registry map[string]drivers.Driver

func (r registry) Changed() <-chan struct{} { return nil }

func (r registry) Get(id string) (drivers.Driver, error) {
	if d, ok := r[id]; ok {
		return d, nil
	}
	return drivers.Driver{}, drivers.ErrNotFound
}

func driver(id string, change ...func(d *drivers.Driver)) drivers.Driver {
	d := drivers.Driver{
		Spec: drivers.Spec{ID: id, Endpoint: "unix:///" + id}, Healthy: true,
		Fingerprint: storage.Fingerprint{
			Healthy: true, Provider: "p",
			Controller: &storage.ControllerCapabilities{AttachDetach: true, Expand: true, OnlineExpand: true},
			Node:       &storage.NodeCapabilities{NodeID: "driver-n1"},
		},
	}
	for _, c := range change {
		c(&d)
	}
	return d
}

var errSecrets = errors.New("sealed with another key")

func open(p *plugin, all ...drivers.Driver) *Controllers {
	r := registry{}
	for _, d := range all {
		r[d.ID] = d
	}
	c := New(Config{
		Node: "n1", ClusterID: func(context.Context) (string, error) { return "c1", nil },
		Calls: drivers.Caller{Drivers: r, Storage: p.do}, Secrets: func(_ context.Context, v claim.Volume) (map[string]string,
			error,
		) {
			if string(v.SealedSecrets) == "damaged" {
				return nil, errSecrets
			}
			return map[string]string{"password": "of " + v.ID}, nil
		},
	})
	c.attachWait, c.wait = 0, 0
	return c
}

var vol = claim.Volume{
	Definition: claim.Definition{
		VolumeRef: claim.VolumeRef{Namespace: "default", ID: "mysql"}, PluginID: "d", ExternalID: "ext-0",
		Capabilities: []claim.Capability{{AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem}},
		MountOptions: claim.MountOptions{FSType: "ext4", Flags: []string{"noatime"}},
		Context:      map[string]string{"endpoint": "e"},
	},
}

var writer = claim.Capability{AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem}

func never(context.Context) (bool, error) { return false, nil }

// begins lets every call begin.
func begins(context.Context) error { return nil }

func TestAttach(t *testing.T) {
	p := &plugin{}
	c := open(p, driver("d"))
	got, err := c.Attach(t.Context(), vol, writer, "n1", begins)
	if err != nil || got["device"] != "/dev/x" {
		t.Fatal(got, err)
	}
	req := p.attached[0]
	if req.NodeID != "driver-n1" || req.ReadOnly || req.Volume.ExternalID != "ext-0" || req.Volume.Name != "mysql" ||
		req.Volume.Secrets["password"] != "of mysql" || req.Volume.Context["endpoint"] != "e" ||
		req.Volume.Capability.AccessMode != storage.SingleNodeWriter {
		t.Errorf("the driver was asked %+v", req)
	}
	reader := claim.Capability{AccessMode: claim.MultiNodeReaderOnly, AttachmentMode: claim.FileSystem}
	if _, err := c.Attach(t.Context(), vol, reader, "n1", begins); err != nil || !p.attached[1].ReadOnly {
		t.Errorf("an attachment for readers: %+v, %v", p.attached[1], err)
	}
	if p.leases != 0 {
		t.Errorf("%d leases are still held", p.leases)
	}
}

// A controller is called only after the attachment is recorded, and not at all without the claim.
func TestAttachIsIntendedFirst(t *testing.T) {
	p := &plugin{}
	c := open(p, driver("d"))
	gone := errors.New("the claim is being released")
	for _, intended := range []error{gone, status.Error(codes.Unavailable, "the ledger is away"), nil} {
		calls := 0
		_, err := c.Attach(t.Context(), vol, writer, "n1", func(context.Context) error {
			calls++
			if len(p.attached) > 0 {
				t.Error("the driver was called before")
			}
			return intended
		})
		if !errors.Is(err, intended) || calls != 1 || (len(p.attached) == 1) != (intended == nil) {
			t.Errorf("intended with %v: %v, after %d calls; attached: %v", intended, err, calls, p.attached)
		}
	}
}

func TestAttachOnlyWhereTheDriverNeedsIt(t *testing.T) {
	for name, change := range map[string]func(d *drivers.Driver){
		"no controller service":    func(d *drivers.Driver) { d.Fingerprint.Controller = nil },
		"no PUBLISH_UNPUBLISH":     func(d *drivers.Driver) { d.Fingerprint.Controller.AttachDetach = false },
		"no node id either, fine ": func(d *drivers.Driver) { d.Fingerprint.Controller, d.Fingerprint.Node = nil, nil },
	} {
		p := &plugin{}
		c := open(p, driver("d", change))
		if pc, err := c.Attach(t.Context(), vol, writer, "n1", begins); err != nil || pc != nil || len(p.attached) > 0 {
			t.Errorf("%s: attach: %v, %v, %v", name, pc, err, p.attached)
		}
		// What was attached, by an earlier version of the driver, is never taken for detached.
		called, err := c.Detach(t.Context(), vol, "n1", "driver-n1", never)
		if status.Code(err) != codes.Unimplemented || called || len(p.detached) > 0 {
			t.Errorf("%s: detach: %v, %v", name, called, err)
		}
	}
}

func TestErrorsNameWhatWasTried(t *testing.T) {
	sick := driver("sick", func(d *drivers.Driver) { d.Healthy, d.Message = false, "socket is gone" })
	silent := driver("silent", func(d *drivers.Driver) {
		d.Healthy, d.Message, d.Fingerprint = false, "no answer yet", storage.Fingerprint{}
	})
	nameless := driver("nameless", func(d *drivers.Driver) { d.Fingerprint.Node.NodeID = "" })
	failing := &plugin{err: status.Error(codes.ResourceExhausted, "no slot is left")}
	on := func(id string) claim.Volume { v := vol; v.PluginID = id; return v }
	damaged := on("d")
	damaged.SealedSecrets = []byte("damaged")

	for name, test := range map[string]struct {
		volume claim.Volume
		node   string
		is     error
		code   codes.Code
		says   []string
	}{
		"unknown driver": {
			volume: on("other"), node: "n1", is: drivers.ErrNotFound,
			says: []string{`attach volume "mysql"`, `node "n1"`, `driver "other"`},
		},
		"unhealthy driver": {
			volume: on("sick"), node: "n1", is: drivers.ErrUnhealthy,
			says: []string{`driver "sick"`, "socket is gone", "pannier driver status sick"},
		},
		"other node": {volume: on("d"), node: "n2", says: []string{`node "n2"`, "is not on node"}},
		"no node id": {volume: on("nameless"), node: "n1", says: []string{"NodeGetInfo"}},
		"secrets":    {volume: damaged, node: "n1", is: errSecrets, says: []string{"open the secrets"}},
		"the driver's code": {
			volume: on("d"), node: "n1", code: codes.ResourceExhausted,
			says: []string{`attach volume "mysql" (external id "ext-0") to node "n1" on driver "d": no slot is left`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := &plugin{}
			if test.code != 0 {
				p = failing
			}
			c := open(p, driver("d"), sick, silent, nameless)
			_, err := c.Attach(t.Context(), test.volume, writer, test.node, begins)
			if err == nil || test.is != nil && !errors.Is(err, test.is) {
				t.Fatalf("got %v, want %v", err, test.is)
			}
			if s, ok := status.FromError(err); test.code != 0 && (!ok || s.Code() != test.code) {
				t.Errorf("code %v, want %v", s.Code(), test.code)
			}
			for _, s := range test.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q lacks %q", err, s)
				}
			}
			if strings.Contains(err.Error(), "rpc error") {
				t.Errorf("%q has gRPC's frame in it", err)
			}
		})
	}
}

func TestDetach(t *testing.T) {
	p := &plugin{}
	c := open(p, driver("d"))
	called, err := c.Detach(t.Context(), vol, "n2", "driver-n2", never)
	if err != nil || !called || p.detached[0] != "driver-n2" || p.volumes[0].Secrets["password"] == "" {
		t.Fatal(called, err, p.detached)
	}
	// Without its id a node that is not this one must not be detached: an empty
	// id means all nodes.
	if called, err := c.Detach(t.Context(), vol, "n2", "", never); err == nil || called {
		t.Errorf("a node whose id is not known: %v, %v", called, err)
	}
	if called, err := c.Detach(t.Context(), vol, "n1", "", never); err != nil || !called || p.detached[1] != "driver-n1" {
		t.Errorf("this node: %v, %v, %v", called, err, p.detached)
	}
	needed := func(context.Context) (bool, error) { return true, nil }
	if called, err := c.Detach(t.Context(), vol, "n1", "driver-n1", needed); err != nil || called {
		t.Errorf("another claim stands there: %v, %v", called, err)
	}
	lost := errors.New("ledger is closed")
	if called, err := c.Detach(t.Context(), vol, "n1", "driver-n1",
		func(context.Context) (bool, error) { return false, lost }); !errors.Is(err, lost) || called {
		t.Errorf("the claims cannot be read: %v, %v", called, err)
	}
	if len(p.detached) != 2 {
		t.Errorf("the driver was asked to detach from %v", p.detached)
	}
}

// While an attach is in progress, a detach of the same volume and node neither decides nor calls the driver; a
// detach on another node does.
func TestAttachAndDetachDoNotOverlap(t *testing.T) {
	p := &plugin{entered: make(chan string), proceed: make(chan struct{})}
	c := open(p, driver("d"))
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := c.Attach(t.Context(), vol, writer, "n1", begins); err != nil {
			t.Error(err)
		}
	})
	<-p.entered
	wg.Go(func() {
		called, err := c.Detach(t.Context(), vol, "n1", "driver-n1", func(context.Context) (bool, error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			if len(p.attached) != 1 {
				t.Error("it was decided while an attach was under way")
			}
			return true, nil
		})
		if called || err != nil {
			t.Error(called, err)
		}
	})
	check.Eventually(t, "the detach waits",
		func() bool { return c.attachments.Users(attachment{vol.VolumeRef, "n1"}) == 2 })
	if called, err := c.Detach(t.Context(), vol, "n2", "driver-n2", never); !called || err != nil {
		t.Error(called, err)
	}
	p.proceed <- struct{}{}
	wg.Wait()
}

func TestWaitingEndsWithTheCaller(t *testing.T) {
	p := &plugin{entered: make(chan string), proceed: make(chan struct{})}
	c := open(p, driver("d"))
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { c.Attach(t.Context(), vol, writer, "n1", begins) })
	<-p.entered
	gone := errors.New("the caller is gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if _, err := c.Detach(ctx, vol, "n1", "driver-n1", never); !errors.Is(err, gone) {
		t.Error(err)
	}
	p.proceed <- struct{}{}

	unlock, err := c.Exclusive(t.Context(), vol.VolumeRef)
	check.NoError(t, err)
	if _, err := c.Exclusive(ctx, vol.VolumeRef); !errors.Is(err, gone) {
		t.Error(err)
	}
	unlock()
	unlock, err = c.Exclusive(t.Context(), vol.VolumeRef)
	check.NoError(t, err)
	unlock()
	if n := c.volumes.Len(); n != 0 {
		t.Errorf("%d locks are left behind", n)
	}
}

func TestCreate(t *testing.T) {
	p := &plugin{}
	c := open(p, driver("d"))
	want := vol
	want.ExternalID, want.CapacityMin, want.CapacityMax, want.Parameters = "", 5, 9, map[string]string{"sku": "x"}
	made, err := c.Create(t.Context(), want, nil)
	check.NoError(t, err)
	if made.ExternalID != "ext-1" || made.Capacity != 7 || made.Context["k"] != "v" ||
		made.Topologies[0].Segments["rack"] != "r1" || made.ID != "mysql" {
		t.Errorf("got %+v", made)
	}
	req := p.created[0]
	if req.CapacityMin != 5 || req.CapacityMax != 9 || req.Parameters["sku"] != "x" || req.Secrets["password"] == "" ||
		req.Capabilities[0].FSType != "ext4" || req.Capabilities[0].MountFlags[0] != "noatime" {
		t.Errorf("the driver was asked %+v", req)
	}
	if _, err := c.Create(t.Context(), want, nil); err != nil || p.created[1].Name != req.Name {
		t.Errorf("a repeated create has the name %q after %q, %v", p.created[1].Name, req.Name, err)
	}
}

func (p *plugin) Capacity(_ context.Context, _ storage.Driver, req storage.CapacityRequest) (storage.Capacity, error) {
	p.asked = append(p.asked, req)
	if len(p.rooms) == 0 {
		return storage.Capacity{}, status.Error(codes.Unimplemented, "no idea")
	}
	room := p.rooms[0]
	p.rooms = p.rooms[1:]
	return room, nil
}

func TestCreateAsksForRoom(t *testing.T) {
	measures := func(d *drivers.Driver) { d.Fingerprint.Controller.GetCapacity = true }
	full := status.Error(codes.ResourceExhausted, "the disk is full")
	both := claim.TopologyRequest{Required: []claim.Topology{
		{Segments: map[string]string{"rack": "r1"}}, {Segments: map[string]string{"rack": "r2"}},
	}}
	for name, tc := range map[string]struct {
		driver   drivers.Driver
		topology claim.TopologyRequest
		rooms    []storage.Capacity
		answers  error
		full     bool
		says     []string // in the error; nil: none
	}{
		"enough": {driver: driver("d", measures), rooms: []storage.Capacity{{Available: 100}}},
		"thin": {
			driver: driver("d", measures), rooms: []storage.Capacity{{Available: 1, MaximumVolume: 100}},
		},
		"another rack has more": {
			driver: driver("d", measures), topology: both, rooms: []storage.Capacity{{}, {Available: 100}},
		},
		"it does not answer": {driver: driver("d", measures)},
		"it cannot say":      {driver: driver("d"), rooms: []storage.Capacity{{}}},
		"too little": {
			driver: driver("d", measures), rooms: []storage.Capacity{{Available: 99}}, answers: full, full: true,
			says: []string{"room for 99 bytes", "capacity_min is 100", "the disk is full"},
		},
		"volumes are smaller": {
			driver: driver("d", measures), rooms: []storage.Capacity{{Available: 1000, MaximumVolume: 50}},
			answers: status.Error(codes.OutOfRange, "too big"), full: true, says: []string{"room for 50 bytes", "too big"},
		},
		"no rack has enough": {
			driver: driver("d", measures), topology: both, rooms: []storage.Capacity{{Available: 20}, {Available: 10}},
			answers: full, full: true, says: []string{"room for 20 bytes"},
		},
		// An earlier call has made it, and taken the room.
		"it is made already": {driver: driver("d", measures), rooms: []storage.Capacity{{Available: 1}}, full: true},
		"another refusal": {
			driver: driver("d", measures), rooms: []storage.Capacity{{Available: 1}}, full: true,
			answers: status.Error(codes.InvalidArgument, "bad sku"), says: []string{"bad sku"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := &plugin{rooms: tc.rooms, err: tc.answers}
			v := vol
			v.CapacityMin, v.Topology = 100, tc.topology
			_, err := open(p, tc.driver).Create(t.Context(), v, nil)
			if status.Code(err) != status.Code(tc.answers) {
				t.Errorf("got %v, want the code of %v", err, tc.answers)
			}
			for _, word := range tc.says {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not say %q", err, word)
				}
			}
			if tc.answers != nil && tc.says[0] == "bad sku" && strings.Contains(err.Error(), "room") {
				t.Errorf("%q is not about room", err)
			}
			if len(p.created) != 1 || p.created[0].Full != tc.full {
				t.Errorf("created %+v, want one call with Full %v", p.created, tc.full)
			}
			for n, place := range tc.topology.Required {
				if p.asked[n].Topology["rack"] != place.Segments["rack"] || p.asked[n].Capabilities[0].FSType != "ext4" {
					t.Errorf("question %d was %+v", n, p.asked[n])
				}
			}
		})
	}
}

func TestDriverName(t *testing.T) {
	long := strings.Repeat("x", claim.MaxID)
	seen := map[string]bool{}
	for _, parts := range [][]string{
		{"c1", "volume", "a-b", "c"},
		{"c1", "volume", "a", "b-c"},
		{"c1", "snapshot", "a", "b-c"},
		{"c2", "volume", "a", "b-c"},
		{"c1", "volume", long, long},
		{"c1", "volume", long, long + "y"},
	} {
		name := driverName(parts[0], parts[1], parts[2:]...)
		if seen[name] || len(name) > maxName || name != driverName(parts[0], parts[1], parts[2:]...) {
			t.Errorf("%v: %q (%d bytes)", parts, name, len(name))
		}
		seen[name] = true
	}
	if name := driverName("c1", "volume", "default", "mysql"); !strings.HasPrefix(name, "default-mysql-") {
		t.Errorf("%q cannot be recognised", name)
	}
}

// A check says what a create would fail at, and calls no driver.
func TestCheckCreate(t *testing.T) {
	creates := func(d *drivers.Driver) { d.Fingerprint.Controller.CreateDelete = true }
	measures := func(d *drivers.Driver) { d.Fingerprint.Controller.GetCapacity = true }
	for name, c := range map[string]struct {
		driver drivers.Driver
		change func(v *claim.Volume)
		says   string // empty: it can be created
	}{
		"fine":          {driver: driver("d", creates)},
		"no provisions": {driver: driver("d"), says: "it creates no volumes"},
		"no controller": {driver: driver("d", func(d *drivers.Driver) { d.Fingerprint.Controller = nil }), says: "it creates no"},
		"unhealthy": {driver: driver("d", creates, func(d *drivers.Driver) {
			d.Healthy, d.Message = false, "it is ill"
		}), says: "it is ill"},
		"another driver": {driver: driver("other", creates), says: `"d"`},
		"no clones": {
			driver: driver("d", creates), change: func(v *claim.Volume) { v.CloneID = "x" }, says: "leave clone_id out",
		},
		"no snapshots": {
			driver: driver("d", creates), change: func(v *claim.Volume) { v.SnapshotID = "x" }, says: "leave snapshot_id out",
		},
		"mount flags": {
			driver: driver("d", creates), change: func(v *claim.Volume) { v.MountOptions.Flags = []string{"suid"} },
			says: "allowed_mount_flags",
		},
		"room": {
			driver: driver("d", creates, measures), change: func(v *claim.Volume) { v.CapacityMin = 1000 },
		},
		"no room": {
			driver: driver("d", creates, measures), change: func(v *claim.Volume) { v.CapacityMin = 1001 },
			says: "it has room for 1000 bytes and capacity_min is 1001",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := &plugin{rooms: []storage.Capacity{{Available: 1000}}}
			controllers := open(p, c.driver)
			controllers.wait = 0
			v := vol
			if c.change != nil {
				c.change(&v)
			}
			got, err := controllers.CheckCreate(t.Context(), v, nil)
			if c.says == "" && (err != nil || got != volumeName("c1", v)) ||
				c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("%q, %v", got, err)
			}
			if len(p.created) > 0 {
				t.Errorf("the driver was asked for %+v", p.created)
			}
		})
	}
}

// A volume's name is what its driver shows, and still no other volume's.
func TestVolumeName(t *testing.T) {
	volume := func(namespace, id, name string) claim.Volume {
		ref := claim.VolumeRef{Namespace: namespace, ID: id}
		return claim.Volume{Definition: claim.Definition{VolumeRef: ref, Name: name}}
	}
	seen := map[string]claim.Volume{}
	for _, c := range []struct {
		cluster string
		volume  claim.Volume
		prefix  string
	}{
		{"c1", volume("default", "mysql", "mysql"), "default-mysql-"},
		{"c1", volume("default", "pg", ""), "default-pg-"},
		{"c1", volume("default", "db1", "database"), "database-"},
		{"c1", volume("default", "db2", "database"), "database-"},
		{"c1", volume("prod", "db1", "database"), "database-"},
		{"c2", volume("default", "db1", "database"), "database-"},
		{"c1", volume("default", "up", "../../etc/x y"), "etc-x-y-"},
		{"c1", volume("default", "ü", "Bücher"), "B-cher-"},
		{"c1", volume("default", "dots", "/../"), "default-dots-"},
		{"c1", volume("default", "long", strings.Repeat("é", 200)+"x"), "x-"},
		{"c1", volume("default", "longer", strings.Repeat("y", 200)), "yyy"},
		{"c1", volume("default", "data[0]", "data[0]"), "default-data-0--"},
		{"c1", volume("default", "data(0)", "data(0)"), "default-data-0--"},
		{"c1", volume("default", "$(x);'\\*", ""), "default---x-----"},
	} {
		name := volumeName(c.cluster, c.volume)
		if !strings.HasPrefix(name, c.prefix) || len(name) > maxName || claim.CheckID(name) != nil {
			t.Errorf("%q in %s: %q", c.volume.Name, c.cluster, name)
		}
		if other, ok := seen[name]; ok {
			t.Errorf("%v and %v have one name, %q", c.volume, other, name)
		}
		if again := volumeName(c.cluster, c.volume); again != name {
			t.Errorf("%q, then %q: a create cannot be repeated", name, again)
		}
		seen[name] = c.volume
	}
}

// TestCreatedWithAnotherCapacity: the volume is named and left alone.
func TestCreatedWithAnotherCapacity(t *testing.T) {
	for _, tc := range []struct {
		least, most int64
		want        string
	}{
		{7, 7, ""},
		{0, 0, ""},
		{0, 7, ""},
		{8, 0, `volume "ext-1" of 7 bytes, which is less than capacity_min, 8`},
		{0, 6, `volume "ext-1" of 7 bytes, which is more than capacity_max, 6`},
	} {
		p := &plugin{capacity: 7}
		v := vol
		v.CapacityMin, v.CapacityMax = tc.least, tc.most
		able := driver("d", func(d *drivers.Driver) { d.Fingerprint.Controller.CreateDelete = true })
		_, err := open(p, able).Create(t.Context(), v, nil)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}

func TestExpandOffline(t *testing.T) {
	p := &plugin{}
	c := open(p, driver("d", func(d *drivers.Driver) { d.Fingerprint.Controller.OnlineExpand = false }))
	inUse := func(context.Context) error { return claim.ErrVolumeInUse }
	if _, err := c.Expand(t.Context(), vol, 10, 0, inUse); !errors.Is(err, claim.ErrVolumeInUse) || len(p.volumes) > 0 {
		t.Errorf("in use: %v, called %d times", err, len(p.volumes))
	}
	if r, err := c.Expand(t.Context(), vol, 10, 0, begins); err != nil || r.Capacity != 10 {
		t.Errorf("not in use: %+v, %v", r, err)
	}
	used := vol
	used.AccessMode, used.AttachmentMode = claim.SingleNodeWriter, claim.BlockDevice
	c = open(p, driver("d"))
	if _, err := c.Expand(t.Context(), used, 10, 0, inUse); err != nil {
		t.Fatal(err)
	}
	if got := p.volumes[len(p.volumes)-1].Capability; got.AttachmentMode != storage.BlockDevice || got.FSType != "" {
		t.Errorf("the driver was told it is in use as %+v", got)
	}
}

func TestExpandOnNodesAlone(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(d *drivers.Driver)
		want   storage.ExpandResponse
		code   codes.Code
	}{
		"no EXPAND_VOLUME in the controller": {
			func(d *drivers.Driver) { d.Fingerprint.Controller.Expand, d.Fingerprint.Node.Expand = false, true },
			storage.ExpandResponse{Capacity: 10, NodeExpansionRequired: true},
			codes.OK,
		},
		"no controller": {
			func(d *drivers.Driver) { d.Fingerprint.Controller, d.Fingerprint.Node.Expand = nil, true },
			storage.ExpandResponse{Capacity: 10, NodeExpansionRequired: true},
			codes.OK,
		},
		"nowhere": {
			func(d *drivers.Driver) { d.Fingerprint.Controller.Expand = false }, storage.ExpandResponse{}, codes.Unimplemented,
		},
	} {
		p := &plugin{}
		got, err := open(p, driver("d", tc.change)).Expand(t.Context(), vol, 10, 0, begins)
		if s, _ := status.FromError(err); got != tc.want || s.Code() != tc.code || len(p.volumes) > 0 {
			t.Errorf("%s: %+v, %v; the controller was asked about %v", name, got, err, p.volumes)
		}
	}
}

func TestSecretsOfTheRequestReplaceTheStored(t *testing.T) {
	p := &plugin{}
	c := open(p, driver("d"))
	damaged := vol
	damaged.SealedSecrets = []byte("damaged")
	if err := c.Delete(t.Context(), damaged, map[string]string{"password": "new"}, begins); err != nil ||
		p.volumes[0].Secrets["password"] != "new" {
		t.Errorf("%v, %v", p.volumes, err)
	}
	if err := c.Delete(t.Context(), damaged, nil, begins); !errors.Is(err, errSecrets) {
		t.Error(err)
	}
}
