package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pannier/pannier/cluster/claim"
	escape "github.com/pannier/pannier/internal/printable"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *App) nodeCommand() *cobra.Command {
	return a.Noun("node", "Nodes of the cluster",
		a.nodeStatus(), a.nodeDrain(), a.nodeEligibility(), a.nodeNamespaces(), a.nodePurge())
}

func (a *App) nodeStatus() *cobra.Command {
	var read hostv1.ReadOptions
	cmd := &cobra.Command{
		Use: "status [NODE]", Short: "List the nodes, or show one with its workloads and claims",
		Example: "pannier node status web-1",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			if len(args) == 0 {
				resp, err := client.Nodes.ListNodes(ctx, &hostv1.ListNodesRequest{Read: &read})
				return a.Print(resp, err, func() { a.showNodes(resp.GetNodes()) })
			}
			resp, err := client.Nodes.GetNode(ctx, &hostv1.GetNodeRequest{Name: args[0], Read: &read})
			return a.Print(resp, err, func() { a.showNode(resp) })
		}),
	}
	staleFlag(cmd, &read)
	return cmd
}

// staleFlag adds -stale, which lets any server answer a query.
func staleFlag(cmd *cobra.Command, read *hostv1.ReadOptions) {
	cmd.Flags().BoolVar(&read.Stale, "stale", false,
		"let any server answer from what it has, leader or not, and say how old that may be")
}

func (a *App) showNodes(nodes []*hostv1.Node) {
	t := NewTable("NAME", "STATUS", "ELIGIBLE", "DRAIN", "ROLE", "VERSION", "ADDRESS", "DRIVERS", "HEARD FROM")
	for _, n := range nodes {
		well := 0
		for _, d := range n.GetDrivers() {
			if d.GetHealthy() {
				well++
			}
		}
		t.Row(n.GetName(), nodeStatus(n.GetStatus()), yesNo(n.GetEligible()), drained(n.GetDrain()), nodeRole(n),
			n.GetVersion(), n.GetAddress(),
			fmt.Sprintf("%d of %d healthy", well, len(n.GetDrivers())), since(n.GetLastHeard()))
	}
	a.List(t, "no nodes; an agent becomes one when it has reported its drivers to the ledger")
}

// nodeStatus is a cell with a node's status.
func nodeStatus(status string) Cell {
	switch claim.NodeStatus(status) {
	case claim.NodeReady:
		return Cell{status, Green}
	case claim.NodeDisconnected:
		return Cell{status, Yellow}
	default:
		return Cell{status, Red}
	}
}

func yesNo(yes bool) Cell {
	if yes {
		return Cell{"yes", ""}
	}
	return Cell{"no", Yellow}
}

// drained is a cell with the state of a drain.
func drained(d *hostv1.NodeDrain) Cell {
	switch {
	case d == nil:
		return Cell{"", ""}
	case d.GetDoneAt() == nil:
		return Cell{"under way", Yellow}
	default:
		return Cell{"done", Green}
	}
}

func nodeRole(n *hostv1.Node) string {
	switch {
	case n.GetAddress() == "":
		return ""
	case n.GetServer():
		return "server"
	default:
		return "node"
	}
}

func (a *App) showNode(m *hostv1.GetNodeResponse) {
	n := m.GetNode()
	t := NewTable()
	t.Row("Name", n.GetName())
	t.Row("Status", nodeStatus(n.GetStatus()))
	t.Row("Since", since(n.GetStatusAt()))
	t.Row("Eligible", yesNo(n.GetEligible()))
	t.Row("Namespaces", strings.Join(n.GetNamespaces(), " "))
	t.Row("Drain", drained(n.GetDrain()))
	if d := n.GetDrain(); d != nil {
		t.Row("Drained since", fmt.Sprintf("%s, by %s", since(d.GetStartedAt()), d.GetBy()))
	}
	t.Row("Role", nodeRole(n))
	t.Row("Version", n.GetVersion())
	t.Row("Address", n.GetAddress())
	t.Row("Heard from", since(n.GetLastHeard()))
	if n.GetStatus() == string(claim.NodeDisconnected) {
		t.Row("Claims released", ahead(n.GetLetGoAt()))
	}
	t.Row("Attributes", joinMap(n.GetAttributes()))
	a.Show(t)
	drivers := NewTable("DRIVER", "TYPE", "HEALTH", "PROVIDER", "VERSION", "NODE ID", "TOPOLOGY", "MESSAGE")
	for _, d := range n.GetDrivers() {
		drivers.Row(d.GetId(), d.GetType(), healthy(d.GetHealthy()), d.GetProvider(), d.GetProviderVersion(), d.GetNodeId(),
			joinMap(d.GetTopology()), d.GetMessage())
	}
	a.Section("", drivers)
	devices := NewTable("DEVICES", "PLUGIN", "NUMBER")
	for _, d := range n.GetDevices() {
		devices.Row(strings.Join([]string{d.GetVendor(), d.GetType(), d.GetName()}, "/"), d.GetPlugin(),
			fmt.Sprintf("%d of %d healthy", d.GetHealthy(), d.GetTotal()))
	}
	a.Section("", devices)
	workloads := NewTable("WORKLOAD", "NAMESPACE", "STATUS", "AFTER", "AGE")
	for _, w := range m.GetWorkloads() {
		workloads.Row(w.GetId(), w.GetNamespace(), w.GetStatus(), strings.Join(w.GetAfter(), " "), age(w.GetCreatedAt()))
	}
	a.Section("", workloads)
	claims := NewTable("VOLUME", "NAMESPACE", "WORKLOAD", "MODE", "STATE", "AGE")
	for _, c := range m.GetClaims() {
		claims.Row(c.GetVolume(), c.GetNamespace(), c.GetWorkload(), c.GetMode(), claimState(c.GetState()),
			age(c.GetTakenAt()))
	}
	a.Section("", claims)
}

func (a *App) nodeDrain() *cobra.Command {
	var enable, disable, wait bool
	cmd := &cobra.Command{
		Use: "drain NODE", Short: "Stop all workloads of a node and start none there, or end that",
		Long: `Stop all workloads of a node, the last started first, and start none there until
the drain is disabled. The node does so by itself; -wait waits until it has nothing left.`,
		Example: `pannier node drain -enable -wait web-1
pannier node drain -disable web-1`,
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			if enable && disable || !enable && !disable && !wait || disable && wait {
				return Usage("give -enable or -disable; -wait goes with -enable, or alone")
			}
			if enable || disable {
				resp, err := client.Nodes.DrainNode(ctx, &hostv1.DrainNodeRequest{Name: args[0], Enable: enable})
				if !wait || err != nil {
					text := "the drain of node %[1]q has ended"
					if enable {
						text = "node %[1]q is being drained; follow it with: pannier node drain -wait %[1]s"
					}
					return a.Done(resp, err, text, args[0])
				}
			}
			return a.awaitDrain(ctx, client, args[0])
		}),
	}
	cmd.Flags().BoolVar(&enable, "enable", false, "begin the drain")
	cmd.Flags().BoolVar(&disable, "disable", false, "end it: the node may start workloads again")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the node has nothing left")
	return cmd
}

// awaitDrain waits until a node's drain is done, and shows what is left meanwhile.
func (a *App) awaitDrain(ctx context.Context, client *api.Client, name string) error {
	req := &hostv1.GetNodeRequest{Name: name, Read: &hostv1.ReadOptions{}}
	for left := -1; ; {
		resp, err := client.Nodes.GetNode(ctx, req)
		if err != nil {
			return err
		}
		drain := resp.GetNode().GetDrain()
		switch {
		case drain == nil:
			return Hinted(Coded(ExitRefused, fmt.Errorf("node %q is not drained", name)),
				"begin it with: pannier node drain -enable -wait %s", name)
		case drain.GetDoneAt() != nil:
			return a.Done(resp, nil, "node %q has nothing left", name)
		}
		if now := len(resp.GetWorkloads()); now != left {
			left = now
			a.Note("%s and %s are left on node %q", escape.Count(left, "workload"),
				escape.Count(len(resp.GetClaims()), "claim"), name)
		}
		req.Read.Index = resp.GetMeta().GetIndex()
	}
}

func (a *App) nodeEligibility() *cobra.Command {
	var enable, disable bool
	cmd := &cobra.Command{
		Use: "eligibility NODE", Short: "Set whether a node starts workloads; running ones continue",
		Example: "pannier node eligibility -disable web-1",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			if enable == disable {
				return Usage("give -enable or -disable")
			}
			resp, err := client.Nodes.SetNodeEligibility(ctx, &hostv1.SetNodeEligibilityRequest{Name: args[0], Eligible: enable})
			text := "node %q starts no new workloads; running ones continue"
			if enable {
				text = "node %q starts workloads"
			}
			return a.Done(resp, err, text, args[0])
		}),
	}
	cmd.Flags().BoolVar(&enable, "enable", false, "it starts workloads")
	cmd.Flags().BoolVar(&disable, "disable", false, "it starts none")
	return cmd
}

func (a *App) nodeNamespaces() *cobra.Command {
	var every bool
	var only []string
	cmd := &cobra.Command{
		Use: "namespaces NODE", Short: "Bind a node to namespaces, or end that",
		Long: `Bind a node to namespaces, in which * matches any characters: it starts workloads of these only, and what its
root does with any token reaches no others. Its drivers' controllers serve the volumes of these. Running workloads
continue. The node cannot change it; "node purge" forgets it.`,
		Example: `pannier node namespaces -only shop -only 'shop-*' web-1
pannier node namespaces -any web-1`,
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			if every == (len(only) > 0) {
				return Usage("give -only, once for each namespace, or -any")
			}
			resp, err := client.Nodes.SetNodeNamespaces(ctx, &hostv1.SetNodeNamespacesRequest{Name: args[0], Namespaces: only})
			which := "all namespaces"
			if !every {
				which = "no other namespaces than " + listed(resp.GetNode().GetNamespaces())
			}
			return a.Done(resp, err, "node %q starts workloads of %s", args[0], which)
		}),
	}
	cmd.Flags().StringArrayVar(&only, "only", nil, "a namespace, or a pattern with *; may be repeated")
	cmd.Flags().BoolVar(&every, "any", false, "it starts workloads of all namespaces")
	return cmd
}

func (a *App) nodePurge() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "purge NODE", Short: "Forget a node that is gone for good",
		Long: `Forget a node that is gone for good. Refused while it is up or holds claims. With -force you
confirm that it is down: its workloads are recorded as ended, and its claims are released. What
it has left in the Consul of the leader is removed: services, where the Consul agent is the same,
and its part of intentions.`,
		Example: "pannier node purge web-1",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			resp, err := client.Nodes.PurgeNode(ctx, &hostv1.PurgeNodeRequest{Name: args[0], Force: force})
			return a.Print(resp, err, func() {
				for _, c := range resp.GetLetGo() {
					a.Note("warning: the claim of workload %q on volume %q was released; a mount may be left on the node",
						c.GetWorkload(), c.GetVolume())
				}
				if why := resp.GetLeft(); why != "" {
					a.Note("warning: what the node has left in Consul is still there: %s", why)
				}
				a.Say("node %q is forgotten", args[0])
			})
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false,
		"you confirm that the node is down: its workloads are recorded as ended, and its claims are released")
	return cmd
}
