package controllers

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
)

func rack(node string) []claim.Topology {
	return []claim.Topology{{Segments: map[string]string{"rack": "r-" + node}}}
}

// A controller of another place would answer that the volume is deleted.
func TestOnlyControllersOfThePlaceAreAsked(t *testing.T) {
	c, m := openMany("n1", "n2", "n3")
	far := vol
	far.Topologies = rack("n2")
	for range 3 {
		check.NoError(t, c.Delete(t.Context(), far, nil, begins))
	}
	m.set("n2", func(d *claim.NodeDriver) { d.Healthy = false })
	if err := c.Delete(t.Context(), far, nil, begins); !errors.Is(err, drivers.ErrUnhealthy) {
		t.Error(err)
	}
	far.Topologies = rack("gone")
	if err := c.Delete(t.Context(), far, nil, begins); !errors.Is(err, drivers.ErrUnhealthy) ||
		!strings.Contains(err.Error(), "none is in rack=r-gone") {
		t.Error(err)
	}
	if got := m.asked(); !maps.Equal(got, map[string]int{"n1": 0, "n2": 3, "n3": 0}) {
		t.Errorf("asked were %v", got)
	}
}

// The controllers of network storage are on some nodes and reach all, or beside none.
func TestControllersOfAllPlaces(t *testing.T) {
	c, m := openMany("n1", "n2", "n3")
	far := vol
	far.Topologies = rack("n2")
	m.set("n2", func(d *claim.NodeDriver) { d.Type, d.Controller = claim.NodeService, nil })
	check.NoError(t, c.Delete(t.Context(), far, nil, begins))
	m.set("n2", func(d *claim.NodeDriver) { *d = claim.NodeDriver{ID: "d"} })
	m.set("n3", func(d *claim.NodeDriver) { d.Type, d.Topology = claim.ControllerService, nil })
	check.NoError(t, c.Delete(t.Context(), far, nil, begins))
	if got := m.asked(); got["n2"] != 0 || got["n3"] == 0 || got["n1"]+got["n3"] != 2 {
		t.Errorf("asked were %v", got)
	}
}

func TestDeleteOfAVolumeWhosePlaceIsUnknown(t *testing.T) {
	c, m := openMany("n1", "n2", "n3")
	check.NoError(t, c.Delete(t.Context(), vol, nil, begins))
	if got := m.asked(); !maps.Equal(got, map[string]int{"n1": 1, "n2": 1, "n3": 1}) {
		t.Errorf("asked were %v", got)
	}
	m.set("n2", func(d *claim.NodeDriver) { d.Healthy = false })
	if err := c.Delete(t.Context(), vol, nil, begins); !errors.Is(err, drivers.ErrUnhealthy) {
		t.Errorf("one place did not confirm: %v", err)
	}
}

// The controller of a place lists what is there; a page ends where it is full, wherever that is.
func TestListOfAllPlaces(t *testing.T) {
	c, m := openMany("n1", "n2", "n3", "n4")
	for node, names := range map[string][]string{"n1": {"a", "b", "c"}, "n2": nil, "n3": {"d"}, "n4": {"e", "f"}} {
		m.nodes[node].Controller.ListVolumes = true
		for _, name := range names {
			m.plugins[node].created = append(m.plugins[node].created, storage.CreateRequest{Name: name})
		}
	}
	for size, want := range map[int]string{0: "abcdef", 1: "a b c d e f", 2: "ab cd ef", 3: "abc def", 4: "abcd ef", 9: "abcdef"} {
		var pages []string
		for page := (storage.Page{Max: size}); ; {
			list, err := c.List(t.Context(), "d", page)
			check.NoError(t, err)
			var names string
			for _, v := range list.Volumes {
				names += v.ExternalID
			}
			pages = append(pages, names)
			if page.Token = list.Next; page.Token == "" {
				break
			}
		}
		if got := strings.Join(pages, " "); got != want {
			t.Errorf("pages of %d: %q, want %q", size, got, want)
		}
	}
	if _, err := c.List(t.Context(), "d", storage.Page{Token: "2"}); err == nil || !strings.Contains(err.Error(), "page_token") {
		t.Errorf("another driver's token: %v", err)
	}
	m.set("n3", func(d *claim.NodeDriver) { d.Healthy = false })
	if _, err := c.List(t.Context(), "d", storage.Page{}); !errors.Is(err, drivers.ErrUnhealthy) ||
		!strings.Contains(err.Error(), "list the volumes in rack=r-n3") {
		t.Errorf("a place does not answer: %v", err)
	}
}

func TestPlace(t *testing.T) {
	c, m := openMany("n1", "n2")
	m.nodes["n1"].Controller.Topology, m.nodes["n2"].Controller.Topology = true, true
	given := vol
	given.Topology.Required = rack("n1")
	for name, test := range map[string]struct {
		volume claim.Volume
		node   string
		named  bool
		says   string
	}{
		"the caller's":       {volume: vol, node: "n2"},
		"named":              {volume: vol, node: "n2", named: true},
		"named and given":    {given, "n2", true, "topology_request is given"},
		"named without":      {vol, "n9", true, "does not have"},
		"the caller has not": {vol, "n9", false, `is not on node "n9", and keeps volumes on the nodes n1, n2`},
	} {
		places, err := c.Place(test.volume, test.node, test.named)
		switch {
		case test.says != "":
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%s: %v", name, err)
			}
		case err != nil || len(places) != 1 || places[0].String() != "rack=r-n2":
			t.Errorf("%s: %v, %v", name, places, err)
		}
	}
	if _, err := c.Create(t.Context(), vol, rack("n2")); err != nil {
		t.Error(err)
	}
	if made := m.plugins["n2"].created; len(made) != 1 || made[0].Topology.Requisite[0]["rack"] != "r-n2" {
		t.Errorf("the driver was asked %+v", made)
	}
}
