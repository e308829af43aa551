package controllers

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/sdk/storage"
)

// A controller beside a node service with a topology has the storage of that place. It is asked about the volumes of
// the place and about no others: a controller answers that a volume is deleted if it does not have it (CSI spec,
// DeleteVolume). Every controller is asked about the volumes of a place where all nodes have the node service alone,
// and every volume is a matter of a controller without a node service. A controller that attaches volumes does so for
// other nodes: controllers in the place are preferred.

// placed reports whether a driver has a topology: a volume of it may be accessible from some nodes only.
func placed(d claim.Driver) bool {
	for _, on := range d.Nodes {
		if len(on.Topology) > 0 {
			return true
		}
	}
	return false
}

// inPlaces divides nodes into those whose controllers have the volumes of the places, and the others.
func inPlaces(d claim.Driver, nodes []string, places []claim.Topology) (in, others []string) {
	if len(places) == 0 || !placed(d) {
		return nodes, nil
	}
	isIn := func(node string) bool {
		return slices.ContainsFunc(places, func(t claim.Topology) bool { return t.Includes(d.Nodes[node].Topology) })
	}
	for _, node := range nodes {
		if d.Nodes[node].Type == claim.ControllerService || isIn(node) {
			in = append(in, node)
		} else {
			others = append(others, node)
		}
	}
	for node, on := range d.Nodes {
		if len(in) == 0 && on.Type == claim.NodeService && isIn(node) {
			return nodes, nil
		}
	}
	return in, others
}

// notIn is the error if no controller has the volumes of the places.
func notIn(driver string, places []claim.Topology) error {
	var names []string
	for _, t := range places {
		names = append(names, t.String())
	}
	return &awayError{text: []string{fmt.Sprintf("none is in %s (see: pannier driver status %s)",
		strings.Join(names, " or in "), driver)}}
}

// controllerPlaces are the different topologies of the nodes whose controllers have that node's storage only.
func controllerPlaces(d claim.Driver) (places []claim.Topology) {
	for _, node := range slices.Sorted(maps.Keys(d.Nodes)) {
		t := claim.Topology{Segments: d.Nodes[node].Topology}
		known := slices.ContainsFunc(places, func(o claim.Topology) bool { return maps.Equal(o.Segments, t.Segments) })
		if d.Nodes[node].Type == claim.Monolith && len(t.Segments) > 0 && !known {
			places = append(places, t)
		}
	}
	return places
}

// everywhere makes a call about something that is in the known places. If they are unknown the controllers of each
// place are asked, since those that do not have it answer as if they had done it. The first error ends it.
func (c *Controllers) everywhere(ctx context.Context, doing, driver string, need ability, fn call) error {
	for _, need.places = range c.placesToAsk(driver, need) {
		if err := c.call(ctx, doing, driver, need, fn); err != nil {
			return err
		}
	}
	return nil
}

// placesToAsk are the places in each of which one controller is asked: the need's places together, or all one by one.
func (c *Controllers) placesToAsk(driver string, need ability) [][]claim.Topology {
	if d, err := c.reach.driver(driver); err == nil && len(need.places) == 0 {
		if places := controllerPlaces(d); len(places) > 1 {
			return slices.Collect(slices.Chunk(places, 1))
		}
	}
	return [][]claim.Topology{need.places}
}

// pageOf makes a call that lists one page of what the controllers of all places have, one place after the other. fn
// returns how many entries the page of one controller has, and the driver's token. A token of several places is a
// query of the place and the driver's token.
func (c *Controllers) pageOf(ctx context.Context, doing, driver string, need ability, page storage.Page,
	fn func(ctx context.Context, s storage.Client, d drivers.Driver, page storage.Page) (entries int, next string,
		err error),
) (next string, err error) {
	list := func(doing string) (entries int, err error) {
		err = c.call(ctx, doing, driver, need, func(ctx context.Context, s storage.Client, d drivers.Driver) (err error) {
			entries, next, err = fn(ctx, s, d, page)
			return err
		})
		return entries, err
	}
	each := c.placesToAsk(driver, need)
	if len(each) == 1 {
		_, err := list(doing)
		return next, err
	}
	slices.SortFunc(each, func(a, b []claim.Topology) int { return strings.Compare(a[0].String(), b[0].String()) })
	given, err := url.ParseQuery(page.Token)
	if page.Token != "" && (err != nil || !given.Has("place")) {
		return "", &claim.FieldError{
			Object: fmt.Sprintf("driver %q", driver), Field: "page_token", Problem: "is none of its lists: begin without one",
		}
	}
	limited := page.Max > 0
	for _, need.places = range each {
		place := need.places[0].String()
		if place < given.Get("place") {
			continue
		}
		page.Token = ""
		if place == given.Get("place") {
			page.Token = given.Get("token")
		}
		if limited && page.Max == 0 {
			return url.Values{"place": {place}}.Encode(), nil
		}
		entries, err := list(doing + " in " + place)
		if err != nil {
			return "", err
		}
		if next != "" {
			return url.Values{"place": {place}, "token": {next}}.Encode(), nil
		}
		page.Max = max(page.Max-entries, 0)
	}
	return "", nil
}

// Reaches reports whether a volume is accessible from a node, as far as the driver there has reported.
func (c *Controllers) Reaches(v claim.Volume, node string) bool {
	on, err := c.on(v.PluginID, node)
	return err == nil && v.CheckReachable(node, on.Topology) == nil
}

// Place decides where a volume is created whose definition has no topology request: in the topology of a node, the
// caller's or, if it is named, another one; nil: the driver decides, because its volumes are bound to no node.
func (c *Controllers) Place(v claim.Volume, node string, named bool) ([]claim.Topology, error) {
	given := len(v.Topology.Required)+len(v.Topology.Preferred) > 0
	if given && !named {
		return v.Topology.Required, nil
	}
	d, _ := c.reach.driver(v.PluginID) // of one that is not known, the call to it returns the error
	if !placed(d) && !named {
		return nil, nil
	}
	at, ok := d.Nodes[node]
	refuse := func(field, format string, args ...any) ([]claim.Topology, error) {
		return nil, &claim.FieldError{
			Object: fmt.Sprintf("volume %q", v.VolumeRef), Field: field,
			Problem: fmt.Sprintf(format, args...) + " (see: pannier driver status " + v.PluginID + ")",
		}
	}
	switch {
	case given:
		return refuse("topology_request", "is given, and node %q too: leave one out", node)
	case ok && len(at.Topology) > 0:
		return []claim.Topology{{Segments: at.Topology}}, nil
	case named && ok:
		return refuse("node", "%q: driver %q reports no topology there, so its volumes are bound to no node", node, v.PluginID)
	case named:
		return refuse("node", "%q does not have driver %q", node, v.PluginID)
	case len(controllerPlaces(d)) > 1:
		return refuse("node", "is missing: driver %q is not on node %q, and keeps volumes on the nodes %s; give -node or "+
			"a topology_request", d.ID, node, strings.Join(slices.Sorted(maps.Keys(d.Nodes)), ", "))
	}
	return nil, nil
}
