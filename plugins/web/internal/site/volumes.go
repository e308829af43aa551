package site

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// perPage is how many volumes a page has.
const perPage = 50

// volumesData is a page of the list.
type volumesData struct {
	Volumes                          []row
	Search, State, Namespace, Driver string
	Page, Pages, From, To            int
	Total                            int64
	States                           []string
	// Usage is true if the list has how full the mounted volumes are, which takes a question to each.
	Usage bool
}

// row is a volume of the list.
type row struct {
	*hostv1.Volume
	Usage *hostv1.VolumeUsage
	// Notes name what is wrong with it.
	Notes []string
}

// State of a volume in one word.
func (r row) State() string { return volumeState(r.GetClaims()) }

func volumeState(claims []*hostv1.Claim) string {
	state := "free"
	for _, c := range claims {
		if c.GetState() != "taken" {
			return "releasing"
		}
		state = "in use"
	}
	return state
}

// nearlyFull is how full a volume is in percent when that is a problem.
const nearlyFull = 95

// note adds what is wrong with the volume. That some host does not have its driver is no fault of it.
func (r *row) note(nodes map[string]string, releases []waiting) {
	add := func(why string) { r.Notes = append(r.Notes, why) }
	for _, c := range r.GetClaims() {
		if status, known := nodes[c.GetNode()]; known && status != readyNode {
			add(c.GetNode() + " is " + status)
		}
		at := slices.IndexFunc(releases, func(w waiting) bool {
			return w.Volume == c.GetVolume() && w.Namespace == c.GetNamespace() && w.Workload == c.GetWorkload() &&
				w.Node == c.GetNode()
		})
		if why := c.GetLastError(); at >= 0 {
			add(cmp.Or(releases[at].Error, why, "waits for "+releases[at].WaitsFor))
		} else if why != "" {
			add(why)
		}
	}
	if r.Usage.GetAbnormal() {
		add(cmp.Or(r.Usage.GetCondition(), "the driver reports it as abnormal"))
	}
	if percent(r.Usage.GetBytesUsed(), r.Usage.GetBytesTotal()) >= nearlyFull {
		add("nearly full")
	}
	if r.GetNodesHealthy() == 0 && !r.GetDriverHealthy() {
		add(strings.TrimSuffix("driver "+r.GetSpec().GetPluginId()+" is healthy on no node: "+r.GetDriverMessage(), ": "))
	}
	r.Notes = slices.Compact(r.Notes) // several claims have one error
}

// Query is the address of another page of the same list.
func (d volumesData) Query(page int) string {
	q := url.Values{}
	for key, value := range map[string]string{
		"search": d.Search, "state": d.State, "namespace": d.Namespace, "driver": d.Driver,
	} {
		if value != "" {
			q.Set(key, value)
		}
	}
	if page > 1 {
		q.Set("page", strconv.Itoa(page))
	}
	return "/volumes?" + q.Encode()
}

// Near are the pages that the list links to; 0 stands for a gap.
func (d volumesData) Near() (pages []int) {
	for n := 1; n <= d.Pages; n++ {
		if n == 1 || n == d.Pages || n >= d.Page-2 && n <= d.Page+2 {
			pages = append(pages, n)
		} else if pages[len(pages)-1] != 0 {
			pages = append(pages, 0)
		}
	}
	return pages
}

func (s *Site) volumes(ctx context.Context, u user, r *http.Request) (any, error) {
	q := r.URL.Query()
	d := volumesData{
		Search: q.Get("search"), State: q.Get("state"), Namespace: q.Get("namespace"), Driver: q.Get("driver"),
		Page: 1, States: []string{"free", "taken", "releasing"}, Usage: q.Has("usage") || q.Has(liveParam),
	}
	if n, err := strconv.Atoi(q.Get("page")); err == nil && n > 1 && n < 1<<20 {
		d.Page = n
	}
	if !slices.Contains(d.States, d.State) {
		d.State = ""
	}
	req := &hostv1.ListVolumesRequest{
		Namespace: cmp.Or(d.Namespace, "*"), PluginId: d.Driver, Search: d.Search, State: d.State, PerPage: perPage,
		Page: int32(d.Page), //nolint:gosec // it is bounded above
	}
	res, err := s.host.Volumes.ListVolumes(ctx, req)
	if err != nil {
		return nil, err
	}
	d.Total = res.GetTotal()
	d.Pages = max(int((d.Total+perPage-1)/perPage), 1)
	d.From = min((d.Page-1)*perPage+1, int(d.Total))
	d.To = d.From + len(res.GetVolumes()) - 1
	for _, v := range res.GetVolumes() {
		d.Volumes = append(d.Volumes, row{Volume: v})
	}
	if d.Page == 1 && d.Pages > 1 && d.State == "" { // those that wait are not behind the first page
		req.State = "releasing"
		late, err := s.host.Volumes.ListVolumes(ctx, req)
		if err != nil {
			return nil, err
		}
		for _, v := range late.GetVolumes() {
			if !slices.ContainsFunc(d.Volumes, func(r row) bool { return r.GetCreateIndex() == v.GetCreateIndex() }) {
				d.Volumes = append(d.Volumes, row{Volume: v})
			}
		}
	}
	var releases []waiting
	if d.Usage {
		s.fillUsage(ctx, u, d.Volumes)
		releases, _ = s.host.waiting(ctx) // else the notes have less
	}
	nodes := map[string]string{}
	all, _ := s.host.Nodes.ListNodes(ctx, &hostv1.ListNodesRequest{}) // nor may every user see them
	for _, n := range all.GetNodes() {
		nodes[n.GetName()] = n.GetStatus()
	}
	for n := range d.Volumes {
		d.Volumes[n].note(nodes, releases)
	}
	slices.SortStableFunc(d.Volumes, func(a, b row) int {
		return cmp.Or(cmp.Compare(min(len(b.Notes), 1), min(len(a.Notes), 1)),
			cmp.Compare(b.State(), a.State())) // releasing, in use, free
	})
	return d, nil
}

// volumeData is the page of one volume.
type volumeData struct {
	Volume     *hostv1.Volume
	Usage      *hostv1.VolumeUsage
	Conditions []*hostv1.VolumeCondition
	Summary    string
	Claims     []wayOut
	Events     []event
	EventsWhy  string
	Snapshots  []*hostv1.Snapshot
	// SnapshotsWhy explains why none are shown.
	SnapshotsWhy string
	// CanSnapshot and CanDelete report whether a controller of the driver can.
	CanSnapshot, CanDelete bool
	// Nodes have claims, each once.
	Nodes []string
}

// State of the volume in one word, by the claims that the page has: they are read a moment after the volume.
func (d volumeData) State() string {
	claims := make([]*hostv1.Claim, len(d.Claims))
	for n, c := range d.Claims {
		claims[n] = c.GetClaim()
	}
	return volumeState(claims)
}

// wayOut is a claim with the steps of its release.
type wayOut struct {
	*hostv1.ExplainedClaim
	Steps []wayStep
}

// wayStep is a step of a claim's release: done, now (it is being done), late (it is, and failed once) or ahead.
type wayStep struct{ Name, Text, State string }

// way draws a claim's steps: in use, unmounted, detached, free.
func way(c *hostv1.ExplainedClaim) wayOut {
	steps := []wayStep{
		{Name: "in use", Text: "by " + c.GetClaim().GetWorkload()},
		{Name: "unmount", Text: "on " + c.GetClaim().GetNode()},
		{Name: "detach", Text: "by the driver's controller"},
		{Name: "free", Text: "for other workloads"},
	}
	at := map[string]int{"taken": 0, "unpublishing": 1, "node-detached": 2}[c.GetClaim().GetState()]
	for n := range steps {
		switch {
		case n < at:
			steps[n].State = "done"
		case n > at:
			steps[n].State = "ahead"
		case c.GetLastError() != "":
			steps[n].State = "late"
		default:
			steps[n].State = "now"
		}
	}
	return wayOut{c, steps}
}

// ownEvents is how many events a page of one object has.
const ownEvents = 50

func (s *Site) volume(ctx context.Context, u user, r *http.Request) (any, error) {
	namespace, id := r.PathValue("namespace"), r.PathValue("id")
	res, err := s.host.Volumes.GetVolume(ctx, &hostv1.GetVolumeRequest{Namespace: namespace, Id: id})
	if err != nil {
		return nil, err
	}
	d := volumeData{Volume: res.GetVolume(), Usage: res.GetUsage(), Conditions: res.GetConditions()}
	explained, err := s.host.Volumes.ExplainVolume(ctx, &hostv1.ExplainVolumeRequest{Namespace: namespace, Id: id})
	if err != nil {
		return nil, err
	}
	d.Summary = explained.GetSummary()
	for _, c := range explained.GetClaims() {
		d.Claims = append(d.Claims, way(c))
		if node := c.GetClaim().GetNode(); !slices.Contains(d.Nodes, node) {
			d.Nodes = append(d.Nodes, node)
		}
	}
	d.Events, d.EventsWhy = s.eventsOf(ctx, u, r, []string{"volume", "claim", "snapshot", "workload"}, func(e *hostv1.Event) bool {
		name := qualified(namespace, id)
		if e.GetTopic() == "workload" {
			return slices.ContainsFunc(d.Claims, func(c wayOut) bool {
				return e.GetSubject() == qualified(namespace, c.GetClaim().GetWorkload())
			})
		}
		return e.GetSubject() == name || e.GetDetails()["volume"] == name || e.GetDetails()["volume"] == id
	})
	driver, err := s.host.Drivers.GetDriver(ctx, &hostv1.GetDriverRequest{Id: d.Volume.GetSpec().GetPluginId()})
	can := func(capability string) bool {
		return connect.CodeOf(err) == connect.CodePermissionDenied || // the action says whether it can
			slices.Contains(driver.GetDriver().GetControllerCapabilities(), capability) ||
			slices.ContainsFunc(driver.GetDriver().GetOnNodes(), func(n *hostv1.DriverOnNode) bool {
				return slices.Contains(n.GetControllerCapabilities(), capability)
			})
	}
	d.CanSnapshot, d.CanDelete = can("CREATE_DELETE_SNAPSHOT"), can("CREATE_DELETE_VOLUME")
	d.SnapshotsWhy = "The driver makes no snapshots."
	if d.CanSnapshot {
		d.Snapshots, d.SnapshotsWhy = s.host.snapshotsOf(ctx, d.Volume)
	}
	return d, nil
}

// maxSnapshots bounds how many of a driver's snapshots are looked through for those of a volume.
const maxSnapshots = 500

func (h host) snapshotsOf(ctx context.Context, v *hostv1.Volume) (found []*hostv1.Snapshot, why string) {
	res, err := h.Volumes.ListSnapshots(ctx, &hostv1.ListSnapshotsRequest{
		PluginId: v.GetSpec().GetPluginId(), PerPage: maxSnapshots,
	})
	if connect.CodeOf(err) == connect.CodeUnimplemented {
		return nil, "The driver does not list snapshots."
	}
	if err != nil {
		return nil, reason(err)
	}
	for _, p := range res.GetSnapshots() {
		if p.GetVolume() == qualified(v.GetSpec().GetNamespace(), v.GetSpec().GetId()) ||
			p.GetExternalVolumeId() == v.GetSpec().GetExternalId() {
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(a, b *hostv1.Snapshot) int {
		return b.GetCreatedAt().AsTime().Compare(a.GetCreatedAt().AsTime())
	})
	return found, ""
}
