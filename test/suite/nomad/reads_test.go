package nomad

import (
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/api/contexts"

	"github.com/pannier/pannier/test/lib/check"
)

// TestOneHost runs what needs no ACLs on one host.
func TestOneHost(t *testing.T) {
	t.Parallel()
	r := start(t, "")
	for _, test := range []struct {
		name string
		run  func(t *testing.T, r *rig)
	}{
		{"volumes", volumes},
		{"plugins", plugins},
		{"nodes", nodes},
		{"search", search},
		{"agent", agent},
		{"definitions", definitions},
		{"redefinition", redefinition},
		{"registration", registration},
		{"in use", inUse},
		{"snapshots", snapshots},
		{"blocking", blocking},
		{"swap", swap},
	} {
		if !t.Run(test.name, func(t *testing.T) {
			r.Use(t)
			test.run(t, r)
		}) {
			t.FailNow() // what is left of it would mislead the next
		}
	}
}

// volumes are created, claimed, listed and read as the command line does.
func volumes(t *testing.T, r *rig) {
	r.create(t, definition("data"))
	r.create(t, definition("data-2", func(v *api.CSIVolume) { v.Namespace = "shop" }))
	r.claim(t, "db", "data")

	list, meta, err := r.nomad.CSIVolumes().List(nil)
	check.NoError(t, err)
	if len(list) != 1 || meta.LastIndex == 0 || !meta.KnownLeader {
		t.Fatalf("volumes %v, %+v", list, meta)
	}
	v := list[0]
	if v.ID != "data" || v.Namespace != "default" || v.CurrentWriters != 1 || v.CurrentReaders != 0 || !v.Schedulable ||
		v.PluginID != "hostpath" || v.Provider != "hostpath.csi.k8s.io" || !v.ControllerRequired ||
		v.ControllersHealthy != 1 || v.NodesExpected != 1 || v.CreateIndex == 0 || v.ModifyTime == 0 ||
		v.AccessMode != api.CSIVolumeAccessModeSingleNodeWriter || v.ExternalID == "" {
		t.Errorf("the stub is %+v", v)
	}
	all, _, err := r.nomad.CSIVolumes().List(&api.QueryOptions{Namespace: "*", Prefix: "data", PerPage: 1})
	check.NoError(t, err)
	next, end, err := r.nomad.CSIVolumes().List(&api.QueryOptions{Namespace: "*", PerPage: 1, NextToken: "shop/data-2"})
	check.NoError(t, err)
	if len(all) != 1 || all[0].ID != "data" || len(next) != 1 || next[0].ID != "data-2" || end.NextToken != "" {
		t.Errorf("the pages are %v, %v, %+v", all, next, end)
	}
	_, first, err := r.nomad.CSIVolumes().List(&api.QueryOptions{Namespace: "*", PerPage: 1})
	if check.NoError(t, err); first.NextToken != "shop/data-2" {
		t.Errorf("the next page is %q", first.NextToken)
	}
	hosts, _, err := r.nomad.HostVolumes().List(&api.HostVolumeListRequest{}, nil)
	if check.NoError(t, err); len(hosts) != 0 {
		t.Errorf("host volumes %v", hosts)
	}

	got, _, err := r.nomad.CSIVolumes().Info("data", nil)
	check.NoError(t, err)
	if len(got.Allocations) != 1 || len(got.WriteAllocs) != 1 || len(got.ReadAllocs) != 0 || got.Capacity < 1<<20 ||
		got.RequestedCapacityMin != 1<<20 || len(got.RequestedCapabilities) != 1 || !got.ResourceExhausted.IsZero() {
		t.Fatalf("volume %+v", got)
	}
	a := got.Allocations[0]
	if _, known := got.WriteAllocs[a.ID]; !known || len(a.ID) != 36 || a.JobID != "db" || a.NodeName != r.Name ||
		a.ClientStatus != "running" || a.DesiredStatus != "run" || a.CreateTime == 0 {
		t.Errorf("allocation %+v", a)
	}
	// The volumes of a node are found by its id.
	on, err := r.nomad.Nodes().CSIVolumes(a.NodeID, nil)
	check.NoError(t, err)
	off, err := r.nomad.Nodes().CSIVolumes("00000000-0000-5000-8000-000000000000", nil)
	if check.NoError(t, err); len(on) != 1 || on[0].ID != "data" || len(off) != 0 {
		t.Errorf("the node has %v, another one %v", on, off)
	}
	_, _, err = r.nomad.CSIVolumes().Info("none", nil)
	refused(t, err, 404, "none")
	_, _, err = r.nomad.CSIVolumes().Info("data", &api.QueryOptions{Region: "moon"})
	refused(t, err, 500, `No path to region "moon"`)

	// What is at the driver. This one has no tokens for further pages.
	page, _, err := r.nomad.CSIVolumes().ListExternal("hostpath", &api.QueryOptions{PerPage: 30})
	check.NoError(t, err)
	external := page.Volumes
	if len(external) != 2 || !slices.ContainsFunc(external, func(e *api.CSIVolumeExternalStub) bool {
		return e.ExternalID == got.ExternalID && e.CapacityBytes == got.Capacity
	}) {
		t.Errorf("external volumes %v", external)
	}
}

// plugins are the drivers.
func plugins(t *testing.T, r *rig) {
	list, meta, err := r.nomad.CSIPlugins().List(&api.QueryOptions{Prefix: "host"})
	check.NoError(t, err)
	if len(list) != 1 || list[0].ID != "hostpath" || list[0].ControllersHealthy != 1 || list[0].NodesHealthy != 1 ||
		meta.LastIndex == 0 {
		t.Fatalf("plugins %v, %+v", list, meta)
	}
	none, _, err := r.nomad.CSIPlugins().List(&api.QueryOptions{Prefix: "x"})
	if check.NoError(t, err); len(none) != 0 {
		t.Errorf("plugins %v", none)
	}
	p, _, err := r.nomad.CSIPlugins().Info("hostpath", nil)
	check.NoError(t, err)
	if p.Provider != "hostpath.csi.k8s.io" || p.Version == "" || len(p.Nodes) != 1 || len(p.Controllers) != 1 {
		t.Fatalf("plugin %+v", p)
	}
	for id, n := range p.Nodes {
		c := p.Controllers[id]
		if len(id) != 36 || !n.Healthy || n.HealthDescription != "healthy" || n.NodeInfo.ID != r.Name+"-at-hostpath" ||
			!n.NodeInfo.RequiresNodeStageVolume || c == nil || !c.Healthy || !c.ControllerInfo.SupportsCreateDelete ||
			!c.ControllerInfo.SupportsListSnapshots || !c.ControllerInfo.SupportsAttachDetach {
			t.Errorf("on node %s: %+v, %+v, %+v", id, n, n.NodeInfo, c)
		}
	}
	_, _, err = r.nomad.CSIPlugins().Info("none", nil)
	refused(t, err, 404, "none")
}

func nodes(t *testing.T, r *rig) {
	list, meta, err := r.nomad.Nodes().List(nil)
	check.NoError(t, err)
	if len(list) != 1 || list[0].Name != r.Name || list[0].Status != api.NodeStatusReady ||
		list[0].SchedulingEligibility != api.NodeSchedulingEligible || meta.LastIndex == 0 {
		t.Fatalf("nodes %v, %+v", list, meta)
	}
	id := list[0].ID
	for prefix, want := range map[string]int{id: 1, id[:4]: 1, "zz": 0, r.Name: 0} {
		if strings.HasPrefix(id, r.Name) {
			continue
		}
		found, _, err := r.nomad.Nodes().PrefixList(prefix)
		if check.NoError(t, err); len(found) != want {
			t.Errorf("nodes that begin with %q: %v", prefix, found)
		}
	}
	n, _, err := r.nomad.Nodes().Info(id, nil)
	check.NoError(t, err)
	if n.Name != r.Name || n.CSINodePlugins["hostpath"] == nil || !n.CSINodePlugins["hostpath"].Healthy {
		t.Errorf("node %+v", n)
	}
	_, _, err = r.nomad.Nodes().Info("00000000-0000-5000-8000-000000000000", nil)
	refused(t, err, 404, "not found")
}

func search(t *testing.T, r *rig) {
	got, _, err := r.nomad.Search().PrefixSearch("data", contexts.Volumes, nil)
	check.NoError(t, err)
	if !slices.Equal(got.Matches[contexts.Volumes], []string{"data"}) || got.Truncations[contexts.Volumes] {
		t.Errorf("volumes %+v", got)
	}
	all, _, err := r.nomad.Search().PrefixSearch("", contexts.All, &api.QueryOptions{Namespace: "*"})
	check.NoError(t, err)
	m := all.Matches
	if !slices.Equal(m[contexts.Volumes], []string{"data", "data-2"}) ||
		!slices.Equal(m[contexts.Plugins], []string{"hostpath"}) || len(m[contexts.Nodes]) != 1 ||
		!slices.Equal(m[contexts.Namespaces], []string{"default", "shop"}) {
		t.Errorf("everything: %+v", m)
	}
	jobs, _, err := r.nomad.Search().PrefixSearch("", contexts.Jobs, nil)
	if check.NoError(t, err); len(jobs.Matches[contexts.Jobs]) != 0 {
		t.Errorf("jobs %+v", jobs)
	}
}

func agent(t *testing.T, r *rig) {
	self, err := r.nomad.Agent().Self()
	check.NoError(t, err)
	if !strings.HasPrefix(self.Member.Name, r.Name+".") || self.Config["Region"] != "global" {
		t.Errorf("the agent is %+v", self)
	}
	leader, err := r.nomad.Status().Leader()
	if check.NoError(t, err); leader == "" {
		t.Error("nobody leads")
	}
	regions, err := r.nomad.Regions().List()
	if check.NoError(t, err); !slices.Equal(regions, []string{"global"}) {
		t.Errorf("regions %v", regions)
	}
	spaces, _, err := r.nomad.Namespaces().List(nil)
	if check.NoError(t, err); len(spaces) != 2 {
		t.Errorf("namespaces %v", spaces)
	}
	_, _, err = r.nomad.Namespaces().Info("shop", nil)
	check.NoError(t, err)
	_, _, err = r.nomad.Namespaces().Info("none", nil)
	refused(t, err, 404)
	_, _, err = r.nomad.Jobs().List(nil)
	refused(t, err, 404, "Pannier has no GET /v1/jobs")
}
