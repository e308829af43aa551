package site

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// nodeParam names the node that a page is about, in place of the one whose page it is.
const nodeParam = "node"

func nodeOf(r *http.Request) string { return r.URL.Query().Get(nodeParam) }

// onNode adds the node to the address of a page; empty: the page is about this one.
func onNode(path, node string) string {
	if node == "" {
		return path
	}
	return path + "?" + url.Values{nodeParam: {node}}.Encode()
}

const (
	// othersPatience is how long an update of a page waits for other nodes, which are asked at once.
	othersPatience = time.Second
	// othersAtOnce and maxOthers bound how many are asked at a time, and in all.
	othersAtOnce, maxOthers = 16, 200
)

// choices are the cluster's nodes, for a page to choose from, or why they are not shown. They need no leader. Nodes in
// the given states of gossip are left out.
func (h host) choices(ctx context.Context, without ...string) (names []string, why string) {
	res, err := h.Members.ListMembers(ctx, &hostv1.ListMembersRequest{})
	for _, m := range res.GetMembers() {
		if m.GetStatus() != "left" && !slices.Contains(without, m.GetStatus()) {
			names = append(names, m.GetName())
		}
	}
	slices.Sort(names)
	return names, reason(err)
}

// others asks several nodes at once, for othersPatience in all. done is called for one after the other.
func others[A any](ctx context.Context, nodes []string, call func(ctx context.Context, node string) (A, error),
	done func(node string, answer A, why string),
) {
	ctx, cancel := context.WithTimeout(ctx, othersPatience)
	defer cancel()
	var mu sync.Mutex
	var asking errgroup.Group
	asking.SetLimit(othersAtOnce)
	for _, node := range nodes {
		asking.Go(func() error {
			answer, err := call(ctx, node)
			why := reason(err)
			if connect.CodeOf(err) == connect.CodeDeadlineExceeded {
				why = "it has not answered within a second"
			}
			mu.Lock()
			defer mu.Unlock()
			done(node, answer, why)
			return nil
		})
	}
	_ = asking.Wait() // nothing returns an error
}

// pluginsData is the page of all plugins.
type pluginsData struct {
	// Node alone is shown; empty: all nodes are.
	Node    string
	Choices []string
	// ChoicesWhy explains why other nodes are not shown.
	ChoicesWhy string
	Nodes      []nodePlugins
}

// nodePlugins are the plugins of a node.
type nodePlugins struct {
	// Node is empty for the one whose page it is.
	Node, Name string
	Plugins    []*hostv1.Plugin
	// Waits: it is asked a moment after the page has opened.
	Waits bool
	// Why explains why its plugins are not known; empty: they are.
	Why string
}

// Count is how many plugins are shown.
func (d pluginsData) Count() (n int) {
	for _, one := range d.Nodes {
		n += len(one.Plugins)
	}
	return n
}

// plugins shows the plugins of all nodes, or of one. The first answer has this node's only, and the stream adds the
// others'.
func (s *Site) plugins(ctx context.Context, _ user, r *http.Request) (any, error) {
	d := pluginsData{Node: nodeOf(r)}
	first, err := s.host.pluginsOf(ctx, d.Node)
	if err != nil {
		return nil, err
	}
	d.Nodes = []nodePlugins{first}
	if d.Choices, d.ChoicesWhy = s.host.choices(ctx); d.Node != "" {
		return d, nil
	}
	names := slices.DeleteFunc(slices.Clone(d.Choices), func(name string) bool { return name == first.Name })
	names = names[:min(len(names), maxOthers)]
	if !r.URL.Query().Has(liveParam) {
		for _, name := range names {
			d.Nodes = append(d.Nodes, nodePlugins{Node: name, Name: name, Waits: true})
		}
		return d, nil
	}
	others(ctx, names, s.host.pluginsOf, func(node string, of nodePlugins, why string) {
		of.Node, of.Name, of.Why = node, node, why
		d.Nodes = append(d.Nodes, of)
	})
	slices.SortFunc(d.Nodes[1:], func(a, b nodePlugins) int { return cmp.Compare(a.Name, b.Name) })
	return d, nil
}

// pluginsOf asks a node for its plugins; empty: the one whose page it is.
func (h host) pluginsOf(ctx context.Context, node string) (nodePlugins, error) {
	ctx, call := connect.NewClientContext(ctx)
	res, err := h.Plugins.ListPlugins(ctx, &hostv1.ListPluginsRequest{Node: node})
	if err != nil {
		return nodePlugins{}, err
	}
	return nodePlugins{Node: node, Name: call.ResponseHeader().Get(api.NodeHeader), Plugins: res.GetPlugins()}, nil
}
