package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pannier/pannier/cluster/claim"
	escape "github.com/pannier/pannier/internal/printable"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func nodeNoun() noun {
	return nounOf("node", "Nodes of the cluster", append(nodeRuleVerbs(), nodeStatusVerb(), drainVerb()))
}

func nodeStatusVerb() verb {
	var read hostv1.ReadOptions
	return verb{
		use: "status [NODE]", short: "List the nodes, or show one with its workloads and claims", example: "web-1",
		flags: func(f *pflag.FlagSet) { staleFlag(f, &read) },
		run: func(ctx context.Context, c *call) error {
			if len(c.args) == 0 {
				resp, err := c.Nodes.ListNodes(ctx, &hostv1.ListNodesRequest{Read: &read})
				return list(c.Printer, resp, err, resp.GetNodes(), nodeColumns)
			}
			resp, err := c.Nodes.GetNode(ctx, &hostv1.GetNodeRequest{Name: c.args[0], Read: &read})
			first, others := nodeTables(resp)
			return c.Tables(resp, err, first, others...)
		},
	}
}

// staleFlag adds -stale, which lets any server answer a query.
func staleFlag(f *pflag.FlagSet, read *hostv1.ReadOptions) {
	f.BoolVar(&read.Stale, "stale", false,
		"let any server answer from what it has, leader or not, and say how old that may be")
}

var nodeColumns = columns[*hostv1.Node]{
	[]string{"NAME", "STATUS", "ELIGIBLE", "DRAIN", "ROLE", "VERSION", "ADDRESS", "DRIVERS", "HEARD FROM"},
	func(t *Table, n *hostv1.Node) {
		well := 0
		for _, d := range n.GetDrivers() {
			if d.GetHealthy() {
				well++
			}
		}
		t.Row(n.GetName(), stateCell(n.GetStatus()), yesNo(n.GetEligible()), drained(n.GetDrain()), nodeRole(n),
			n.GetVersion(), n.GetAddress(),
			fmt.Sprintf("%d of %d healthy", well, len(n.GetDrivers())), since(n.GetLastHeard()))
	},
	"no nodes; an agent becomes one when it has reported its drivers to the ledger",
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

func nodeTables(m *hostv1.GetNodeResponse) (*Table, []section) {
	n := m.GetNode()
	t := NewTable()
	t.Row("Name", n.GetName())
	t.Row("Status", stateCell(n.GetStatus()))
	t.Row("Since", since(n.GetStatusAt()))
	t.Row("Eligible", yesNo(n.GetEligible()))
	t.Row("Namespaces", strings.Join(n.GetNamespaces(), " "))
	t.Row("Controls", strings.Join(n.GetControllerOf(), " "))
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
	drivers := NewTable("DRIVER", "TYPE", "HEALTH", "PROVIDER", "VERSION", "NODE ID", "TOPOLOGY", "MESSAGE")
	for _, d := range n.GetDrivers() {
		drivers.Row(d.GetId(), d.GetType(), healthy(d.GetHealthy()), d.GetProvider(), d.GetProviderVersion(), d.GetNodeId(),
			joinMap(d.GetTopology()), d.GetMessage())
	}
	devices := NewTable("DEVICES", "PLUGIN", "NUMBER")
	for _, d := range n.GetDevices() {
		devices.Row(strings.Join([]string{d.GetVendor(), d.GetType(), d.GetName()}, "/"), d.GetPlugin(),
			fmt.Sprintf("%d of %d healthy", d.GetHealthy(), d.GetTotal()))
	}
	workloads := NewTable("WORKLOAD", "NAMESPACE", "STATUS", "AFTER", "AGE")
	for _, w := range m.GetWorkloads() {
		workloads.Row(w.GetId(), w.GetNamespace(), w.GetStatus(), strings.Join(w.GetAfter(), " "), age(w.GetCreatedAt()))
	}
	claims := NewTable("VOLUME", "NAMESPACE", "WORKLOAD", "MODE", "STATE", "AGE")
	for _, c := range m.GetClaims() {
		claims.Row(c.GetVolume(), c.GetNamespace(), c.GetWorkload(), c.GetMode(), stateCell(c.GetState()),
			age(c.GetTakenAt()))
	}
	return t, []section{{"", drivers}, {"", devices}, {"", workloads}, {"", claims}}
}

func drainVerb() verb {
	var enable, disable, wait bool
	return verb{
		use: "drain NODE", short: "Stop all workloads of a node and start none there, or end that",
		long: `Stop all workloads of a node, the last started first, and start none there until
the drain is disabled. The node does so by itself; -wait waits until it has nothing left. First it
names the workloads that are stopped.`,
		example: "-enable -wait web-1\n-disable web-1",
		flags: func(f *pflag.FlagSet) {
			f.BoolVar(&enable, "enable", false, "begin the drain")
			f.BoolVar(&disable, "disable", false, "end it: the node may start workloads again")
			f.BoolVar(&wait, "wait", false, "wait until the node has nothing left")
		},
		run: func(ctx context.Context, c *call) error {
			if enable && disable || !enable && !disable && !wait || disable && wait {
				return Usage("give -enable or -disable; -wait goes with -enable, or alone")
			}
			if enable {
				c.announce(ctx, workloadsOf)
			}
			if enable || disable {
				resp, err := c.Nodes.DrainNode(ctx, &hostv1.DrainNodeRequest{Name: c.args[0], Enable: enable})
				if !wait || err != nil {
					text := "the drain of node %[1]q has ended"
					if enable {
						text = "node %[1]q is being drained; follow it with: pannier node drain -wait %[1]s"
					}
					return c.Done(resp, err, text, c.args[0])
				}
			}
			return awaitDrain(ctx, c, c.args[0])
		},
	}
}

// awaitDrain waits until a node's drain is done, and shows what is left meanwhile.
func awaitDrain(ctx context.Context, c *call, name string) error {
	req := &hostv1.GetNodeRequest{Name: name, Read: &hostv1.ReadOptions{}}
	for left := -1; ; {
		resp, err := c.Nodes.GetNode(ctx, req)
		if err != nil {
			return err
		}
		drain := resp.GetNode().GetDrain()
		switch {
		case drain == nil:
			return Hinted(Coded(ExitRefused, fmt.Errorf("node %q is not drained", name)),
				"begin it with: pannier node drain -enable -wait %s", name)
		case drain.GetDoneAt() != nil:
			return c.Done(resp, nil, "node %q has nothing left", name)
		}
		if now := len(resp.GetWorkloads()); now != left {
			left = now
			c.Note("%s and %s are left on node %q", escape.Count(left, "workload"),
				escape.Count(len(resp.GetClaims()), "claim"), name)
		}
		req.Read.Index = resp.GetMeta().GetIndex()
	}
}

// nodeRuleVerbs set what a node may do, or forget it.
func nodeRuleVerbs() []verb {
	var enable, disable, every bool
	var only []string
	purge := &hostv1.PurgeNodeRequest{}
	return []verb{
		{
			use: "eligibility NODE", short: "Set whether a node starts workloads; running ones continue",
			example: "-disable web-1",
			flags: func(f *pflag.FlagSet) {
				f.BoolVar(&enable, "enable", false, "it starts workloads")
				f.BoolVar(&disable, "disable", false, "it starts none")
			},
			run: func(ctx context.Context, c *call) error {
				if enable == disable {
					return Usage("give -enable or -disable")
				}
				text := "node %q starts no new workloads; running ones continue"
				if enable {
					text = "node %q starts workloads"
				}
				resp, err := c.Nodes.SetNodeEligibility(ctx, &hostv1.SetNodeEligibilityRequest{Name: c.args[0], Eligible: enable})
				return c.Done(resp, err, text, c.args[0])
			},
		},
		{
			use: "namespaces NODE", short: "Bind a node to namespaces, or end that",
			long: `Bind a node to namespaces, in which * matches any characters: it starts workloads of these only, and what its
root does with any token reaches no others. Its drivers' controllers serve the volumes of these. Running workloads
continue. The node cannot change it; "node purge" forgets it.`,
			example: "-only shop -only 'shop-*' web-1\n-any web-1",
			flags: func(f *pflag.FlagSet) {
				f.StringArrayVar(&only, "only", nil, "a namespace, or a pattern with *; may be repeated")
				f.BoolVar(&every, "any", false, "it starts workloads of all namespaces")
			},
			run: func(ctx context.Context, c *call) error {
				if every == (len(only) > 0) {
					return Usage("give -only, once for each namespace, or -any")
				}
				resp, err := c.Nodes.SetNodeNamespaces(ctx, &hostv1.SetNodeNamespacesRequest{Name: c.args[0], Namespaces: only})
				which := "all namespaces"
				if !every {
					which = "no other namespaces than " + listed(resp.GetNode().GetNamespaces())
				}
				return c.Done(resp, err, "node %q starts workloads of %s", c.args[0], which)
			},
		},
		{
			use: "purge NODE", short: "Forget a node that is gone for good", example: "web-1",
			long: `Forget a node that is gone for good. Refused while it is up or holds claims. With -force you
confirm that it is down: its workloads are recorded as ended, and its claims are released. What
it has left in the Consul of the leader is removed: services, where the Consul agent is the same,
and its part of intentions. -force asks first, or needs -yes.`,
			danger: &danger{
				when: &purge.Force, concerns: workloadsOf,
				risk: "if node %[1]q still runs, its workloads and those that get its volumes next both write",
			},
			flags: func(f *pflag.FlagSet) {
				f.BoolVar(&purge.Force, "force", false,
					"you confirm that the node is down: its workloads are recorded as ended, and its claims are released")
			},
			run: func(ctx context.Context, c *call) error {
				purge.Name = c.args[0]
				resp, err := c.Nodes.PurgeNode(ctx, purge)
				return c.Print(resp, err, func() {
					for _, l := range resp.GetLetGo() {
						c.Note("warning: the claim of workload %q on volume %q was released; a mount may be left on the node",
							l.GetWorkload(), l.GetVolume())
					}
					if why := resp.GetLeft(); why != "" {
						c.Note("warning: what the node has left in Consul is still there: %s", why)
					}
					c.Say("node %q is forgotten", c.args[0])
				})
			},
		},
	}
}
