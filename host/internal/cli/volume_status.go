package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pannier/pannier/cluster/claim"
	escape "github.com/pannier/pannier/internal/printable"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// volumeStatusVerbs ask about volumes.
func volumeStatusVerbs() []verb {
	var external bool
	var page paging
	var read hostv1.ReadOptions
	which := hostv1.ListVolumesRequest{Read: &read}
	some := func(f *pflag.FlagSet) {
		f.StringVar(&which.Search, "search", "", "only the volumes whose id contains `TEXT`")
		f.StringVar(&which.State, "state", "", "only the volumes of this `STATE`: free, taken or releasing")
		f.Int32Var(&which.Page, "page", 0, "list the page with number `N`, from 1")
		staleFlag(f, &read)
	}
	return []verb{
		{
			use: "status [ID]", short: "List the volumes, or show one with its claims", example: "data",
			flags: func(f *pflag.FlagSet) {
				some(f)
				f.Int32Var(&which.PerPage, "per-page", 0, "list one page of at most `N` volumes")
			},
			run: func(ctx context.Context, c *call) error {
				narrowed := which.Search != "" || which.State != "" || which.PerPage != 0 || which.Page != 0
				switch {
				case len(c.args) == 0:
					return listVolumes(ctx, c, &which)
				case narrowed:
					return Usage("-search, -state, -per-page and -page are for the list: leave out %s", c.args[0])
				}
				resp, err := c.Volumes.GetVolume(ctx, &hostv1.GetVolumeRequest{
					Namespace: c.inNamespace(), Id: c.args[0], Read: &read,
				})
				return c.Print(resp, err, func() { showVolume(c.Printer, resp) })
			},
		},
		{
			use: "list", short: "List volumes by driver or node, or what a driver itself holds",
			example: "-driver local -external",
			flags: func(f *pflag.FlagSet) {
				f.StringVar(&which.PluginId, "driver", "", "only the volumes of this driver's `ID`")
				f.StringVar(&which.Node, "node", "", "only the volumes with a claim on this `NODE`")
				f.BoolVar(&external, "external", false, "ask the driver, registered or not")
				some(f)
				page.flags(f)
			},
			run: func(ctx context.Context, c *call) error {
				other := which.Node + which.Search + which.State
				switch {
				case external && (which.PluginId == "" || other != "" || which.Page != 0):
					return Usage("-external goes with -driver, -per-page and -page-token alone")
				case external:
					return listExternal(ctx, c, which.PluginId, &page)
				case page.token != "":
					return Usage("-page-token goes with -external; these pages have numbers (-page)")
				}
				which.PerPage = page.size
				return listVolumes(ctx, c, &which)
			},
		},
		{
			use: "explain ID", short: "Show who holds a volume, what each claim waits for, and what to do", example: "data",
			long: `Show who holds a volume on which node, what each claim waits for and since when, the last
error, what happens next by itself, and the command to run when that is not enough.`,
			run: func(ctx context.Context, c *call) error {
				resp, err := c.Volumes.ExplainVolume(ctx, &hostv1.ExplainVolumeRequest{
					Namespace: c.inNamespace(), Id: c.args[0],
				})
				return c.Print(resp, err, func() { explainVolume(c.Printer, c.args[0], resp) })
			},
		},
	}
}

// manyVolumes are so many that a person is told how to list fewer.
const manyVolumes = 1000

func listVolumes(ctx context.Context, c *call, req *hostv1.ListVolumesRequest) error {
	if req.Page != 0 && req.PerPage == 0 {
		return Usage("-page needs -per-page")
	}
	req.Namespace = c.namespaceOr("*")
	resp, err := c.Volumes.ListVolumes(ctx, req)
	switch n := len(resp.GetVolumes()); {
	case req.PerPage != 0 && resp.GetTotal() > int64(n):
		pages := (resp.GetTotal()-1)/int64(req.PerPage) + 1
		defer c.Note("page %d of %d: %d volumes in all", max(req.Page, 1), pages, resp.GetTotal())
	case n >= manyVolumes && isTerminal(c.Out):
		defer c.Note("%d volumes; -search, -state, -per-page and -page list fewer", n)
	}
	none := "no volumes; make one with pannier volume init and pannier volume create"
	if req.Search != "" || req.State != "" || req.Page > 1 {
		none = "no such volumes"
	}
	return list(c.Printer, resp, err, resp.GetVolumes(), columns[*hostv1.Volume]{
		[]string{"ID", "NAMESPACE", "DRIVER", "DRIVER HEALTH", "SIZE", "ACCESS MODE", "ATTACHMENT", "CLAIMS", "AGE"},
		func(t *Table, v *hostv1.Volume) {
			t.Row(v.GetSpec().GetId(), v.GetSpec().GetNamespace(), v.GetSpec().GetPluginId(), healthy(v.GetDriverHealthy()),
				size(v.GetCapacity()), v.GetAccessMode(), v.GetAttachmentMode(), len(v.GetClaims()), age(v.GetCreatedAt()))
		},
		none,
	})
}

func listExternal(ctx context.Context, c *call, driver string, p *paging) (err error) {
	all := &hostv1.ListExternalResponse{}
	all.Volumes, all.NextToken, err = entries(p, func(size int32, token string) ([]*hostv1.ExternalVolume, string, error) {
		resp, err := c.Volumes.ListExternal(ctx, &hostv1.ListExternalRequest{
			PluginId: driver, PerPage: size, PageToken: token,
		})
		return resp.GetVolumes(), resp.GetNextToken(), err
	})
	return list(c.Printer, all, err, all.GetVolumes(), columns[*hostv1.ExternalVolume]{
		[]string{"EXTERNAL ID", "SIZE", "CONDITION", "OF SNAPSHOT", "CLONE OF", "PUBLISHED ON"},
		func(t *Table, v *hostv1.ExternalVolume) {
			t.Row(v.GetExternalId(), size(v.GetCapacity()), condition(v.GetAbnormal(), v.GetCondition()),
				v.GetSnapshotId(), v.GetCloneId(), strings.Join(v.GetPublishedNodeIds(), " "))
		},
		fmt.Sprintf("driver %q holds no volumes", driver),
	})
}

// condition is a cell with CSI's VolumeCondition.
func condition(abnormal bool, text string) Cell {
	if abnormal {
		return Cell{"abnormal: " + text, Red}
	}
	return Cell{text, ""}
}

func showVolume(p *Printer, m *hostv1.GetVolumeResponse) {
	v := m.GetVolume()
	spec := v.GetSpec()
	t := NewTable()
	t.Row("ID", spec.GetId())
	t.Row("Name", spec.GetName())
	t.Row("Namespace", spec.GetNamespace())
	t.Row("External id", spec.GetExternalId())
	t.Row("Driver", fmt.Sprintf("%s (%s %s)", spec.GetPluginId(), v.GetProvider(), v.GetProviderVersion()))
	t.Row("Driver health", healthy(v.GetDriverHealthy()))
	t.some("Driver message", v.GetDriverMessage())
	t.Row("Size", size(v.GetCapacity()))
	for _, c := range spec.GetCapabilities() {
		t.Row("May be used as", c.GetAccessMode()+", "+c.GetAttachmentMode())
	}
	t.Row("In use as", strings.Trim(v.GetAccessMode()+", "+v.GetAttachmentMode(), ", "))
	if o := spec.GetMountOptions(); o != nil {
		t.Row("Mount options", strings.TrimSpace(o.GetFsType()+" "+strings.Join(o.GetMountFlags(), ",")))
	}
	for _, topology := range v.GetTopologies() {
		t.Row("Topology", joinMap(topology.GetSegments()))
	}
	t.some("Accessible from", strings.Join(v.GetAccessibleNodes(), ", "))
	t.Row("Parameters", joinMap(spec.GetParameters()))
	t.some("Changed to", joinMap(v.GetMutableParameters()))
	t.Row("Context", joinMap(spec.GetContext()))
	t.Row("Secrets", joinMap(spec.GetSecrets()))
	t.Row("Created", age(v.GetCreatedAt()))
	t.some("Warning", strings.Join(v.GetWarnings(), "; "))
	if u := m.GetUsage(); u.GetBytesTotal() > 0 {
		t.Row("Bytes used", fmt.Sprintf("%s of %s", cmp.Or(size(u.GetBytesUsed()), "0 B"), size(u.GetBytesTotal())))
	}
	if u := m.GetUsage(); u.GetInodesTotal() > 0 {
		t.Row("Inodes used", fmt.Sprintf("%d of %d", u.GetInodesUsed(), u.GetInodesTotal()))
	}
	addConditions(t, m.GetConditions())
	p.Show(t)
	if len(v.GetClaims()) == 0 {
		p.heading("No claims")
		return
	}
	claims := NewTable("WORKLOAD", "NODE", "MODE", "STATE", "TOKEN", "AGE", "LAST ERROR")
	for _, c := range v.GetClaims() {
		claims.Row(c.GetWorkload(), c.GetNode(), c.GetMode(), stateCell(c.GetState()), c.GetIndex(), age(c.GetTakenAt()),
			c.GetLastError())
	}
	p.Section("", claims)
}

// addConditions adds what the driver's controller and nodes say of the volume.
func addConditions(t *Table, all []*hostv1.VolumeCondition) {
	for _, c := range all {
		of := "Condition"
		if c.GetNode() != "" {
			of += " on node " + c.GetNode()
		}
		t.Row(of, condition(c.GetAbnormal(), cmp.Or(c.GetMessage(), "normal")))
	}
}

func explainVolume(p *Printer, id string, m *hostv1.ExplainVolumeResponse) {
	p.Say("volume %q: %s", id, m.GetSummary())
	if len(m.GetConditions()) > 0 {
		t := NewTable()
		addConditions(t, m.GetConditions())
		p.heading("")
		p.Show(t)
	}
	for _, c := range m.GetClaims() {
		t := NewTable()
		t.Row("Workload", c.GetClaim().GetWorkload())
		t.Row("Claim", fmt.Sprintf("%s, token %d", c.GetClaim().GetMode(), c.GetClaim().GetIndex()))
		t.Row("State", stateCell(c.GetClaim().GetState()))
		t.Row("Since", since(c.GetSince()))
		node := stateCell(c.GetNodeStatus())
		node.Text = c.GetClaim().GetNode() + ", " + node.Text
		if c.GetLastHeard() != nil {
			node.Text += ", heard from " + since(c.GetLastHeard())
		}
		t.Row("Node", node)
		if c.GetNodeStatus() == string(claim.NodeDisconnected) {
			t.Row("Released", ahead(c.GetLetGoAt()))
		}
		t.Row("Waits for", c.GetWaitsFor())
		t.some("Tries", c.GetTries())
		if c.GetLastError() != "" {
			t.Row("Last error", Cell{c.GetLastError(), Red})
		}
		t.some("Next try", ahead(c.GetNextTryAt()))
		t.Row("Next", c.GetNext())
		if c.GetCommand() != "" {
			t.Row("Run", Cell{commandOf(c), Bold})
		}
		p.heading("")
		p.Show(t)
	}
}

// commandOf is the command for a claim, with the condition of one that frees the claim of a node that is away.
func commandOf(c *hostv1.ExplainedClaim) string {
	if strings.HasPrefix(c.GetCommand(), "pannier volume detach") && strings.Contains(c.GetCommand(), " -force ") {
		return "if the machine is off: " + c.GetCommand()
	}
	return on(c.GetClaim().GetNode(), c.GetCommand())
}

// on names the node of a command that ends a process there; pannier's own reach every node.
func on(node, command string) string {
	if command == "" || strings.HasPrefix(command, "pannier ") {
		return command
	}
	return fmt.Sprintf("on %s: %s", node, command)
}

// since formats how long ago a time was, with the word ago.
func since(at *timestamppb.Timestamp) string {
	if at == nil {
		return ""
	}
	return span(time.Since(at.AsTime())) + " ago"
}

func detachVerb() verb {
	var force bool
	var timeout time.Duration
	return verb{
		use: "detach ID NODE", short: "Release every claim of a volume on a node", example: "-timeout 30s data web-1",
		long: `Release every claim of a volume on a node, and show what became of each. While it waits it
says for what. The exit code is 1 when a claim is left, or after -timeout; the release
goes on then. First it names the workloads that are stopped. -force frees the claims of a node that
you know is down: it asks first, or needs -yes.`,
		danger: &danger{
			when: &force, concerns: claimsOf,
			risk: "if node %[2]q still runs, its workload and the next one that gets volume %[1]q both write",
		},
		flags: func(f *pflag.FlagSet) {
			f.BoolVar(&force, "force", false, "free the claims of a node that you know is down; your name is recorded")
			f.DurationVar(&timeout, "timeout", 0, "wait no longer than this `duration`, such as 30s; 0: until it is released")
		},
		run: func(ctx context.Context, c *call) error {
			if timeout < 0 {
				return Usage("-timeout: not less than 0")
			}
			if !force {
				c.announce(ctx, claimsOf)
			}
			resp, err := detach(ctx, c, &hostv1.DetachVolumeRequest{
				Namespace: c.inNamespace(), Id: c.args[0], Node: c.args[1], Force: force,
			}, timeout)
			err = list(c.Printer, resp, err, resp.GetClaims(), columns[*hostv1.DetachedClaim]{
				[]string{"WORKLOAD", "MODE", "STATE BEFORE", "RELEASED", "MESSAGE"},
				func(t *Table, d *hostv1.DetachedClaim) {
					t.Row(d.GetClaim().GetWorkload(), d.GetClaim().GetMode(), d.GetClaim().GetState(),
						yesOr(d.GetReleased(), Red), d.GetMessage())
				},
				fmt.Sprintf("volume %q has no claim on node %q: nothing to release", c.args[0], c.args[1]),
			})
			for _, d := range resp.GetClaims() {
				if err == nil && !d.GetReleased() {
					return Hinted(errors.New("not every claim is released"),
						"the rest is retried automatically; -force frees the claims of a node that is down for certain")
				}
			}
			return err
		},
	}
}

// detachInterval is the pause between two looks at what a detach waits for.
const detachInterval = 500 * time.Millisecond

// detach makes the call, and prints what it waits for until it is answered or timeout has passed; 0: none.
func detach(ctx context.Context, c *call, req *hostv1.DetachVolumeRequest,
	timeout time.Duration,
) (*hostv1.DetachVolumeResponse, error) {
	within, cancel := context.WithCancel(ctx) // not with a deadline, of which the agent would be told
	if timeout > 0 {
		defer time.AfterFunc(timeout, cancel).Stop()
	}
	var says sync.WaitGroup
	says.Go(func() {
		for said := ""; ; {
			select {
			case <-time.After(detachInterval):
			case <-within.Done():
				return
			}
			if text := detaching(within, c.Client, req); text != "" && text != said {
				c.Note("%s", text)
				said = text
			}
		}
	})
	resp, err := c.Volumes.DetachVolume(within, req)
	late := err != nil && within.Err() != nil && ctx.Err() == nil
	cancel()
	says.Wait()
	if late {
		return nil, Hinted(fmt.Errorf("volume %q is not released on node %q within %s; the release continues", req.GetId(),
			req.GetNode(), timeout), "pannier volume explain %s", escape.Argument(req.GetId())+" says what it waits for")
	}
	return resp, err
}

// detaching returns what the claims of a volume on a node wait for; empty: nothing, or it is not known.
func detaching(ctx context.Context, client *api.Client, req *hostv1.DetachVolumeRequest) (text string) {
	ctx, cancel := context.WithTimeout(ctx, 10*detachInterval)
	defer cancel()
	resp, err := client.Volumes.ExplainVolume(ctx, &hostv1.ExplainVolumeRequest{
		Namespace: req.GetNamespace(), Id: req.GetId(),
	})
	if err != nil {
		return ""
	}
	for _, c := range resp.GetClaims() {
		if c.GetClaim().GetNode() != req.GetNode() || c.GetWaitsFor() == "" {
			continue
		}
		if text != "" {
			text += "\n"
		}
		text += fmt.Sprintf("workload %q waits for %s", c.GetClaim().GetWorkload(), c.GetWaitsFor())
		if c.GetLastError() != "" {
			text += ": " + c.GetLastError()
		}
		if c.GetCommand() != "" {
			text += fmt.Sprintf(" (%s: %s)", c.GetNext(), commandOf(c))
		}
	}
	return text
}
