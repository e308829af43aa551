package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *App) volumeStatus() *cobra.Command {
	var read hostv1.ReadOptions
	cmd := &cobra.Command{
		Use: "status [ID]", Short: "List the volumes, or show one with its claims",
		Example: "pannier volume status data",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			if len(args) == 0 {
				return a.listVolumes(ctx, client, &hostv1.ListVolumesRequest{Namespace: a.namespaceOr("*"), Read: &read})
			}
			resp, err := client.Volumes.GetVolume(ctx, &hostv1.GetVolumeRequest{
				Namespace: a.namespaceOr(claim.DefaultNamespace), Id: args[0], Read: &read,
			})
			return a.Print(resp, err, func() { a.showVolume(resp) })
		}),
	}
	staleFlag(cmd, &read)
	return cmd
}

func (a *App) volumeList() *cobra.Command {
	var driver, node string
	var external bool
	var page paging
	var read hostv1.ReadOptions
	cmd := &cobra.Command{
		Use: "list", Short: "List volumes by driver or node, or what a driver itself holds",
		Example: "pannier volume list -driver local -external",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
			if external && (driver == "" || node != "") {
				return Usage("-external goes with -driver, and not with -node")
			}
			if !external && page.given() {
				return Usage("-per-page and -page-token go with -external")
			}
			if external {
				return a.listExternal(ctx, client, driver, &page)
			}
			return a.listVolumes(ctx, client, &hostv1.ListVolumesRequest{
				Namespace: a.namespaceOr("*"), PluginId: driver, Node: node, Read: &read,
			})
		}),
	}
	cmd.Flags().StringVar(&driver, "driver", "", "only the volumes of this driver's `ID`")
	cmd.Flags().StringVar(&node, "node", "", "only the volumes with a claim on this `NODE`")
	cmd.Flags().BoolVar(&external, "external", false, "ask the driver, registered or not")
	page.flags(cmd)
	staleFlag(cmd, &read)
	return cmd
}

func (a *App) listVolumes(ctx context.Context, client *api.Client, req *hostv1.ListVolumesRequest) error {
	resp, err := client.Volumes.ListVolumes(ctx, req)
	return a.Print(resp, err, func() {
		t := NewTable("ID", "NAMESPACE", "DRIVER", "DRIVER HEALTH", "SIZE", "ACCESS MODE", "ATTACHMENT", "CLAIMS", "AGE")
		for _, v := range resp.GetVolumes() {
			t.Row(v.GetSpec().GetId(), v.GetSpec().GetNamespace(), v.GetSpec().GetPluginId(), healthy(v.GetDriverHealthy()),
				size(v.GetCapacity()), v.GetAccessMode(), v.GetAttachmentMode(), len(v.GetClaims()), age(v.GetCreatedAt()))
		}
		a.List(t, "no volumes; make one with pannier volume init and pannier volume create")
	})
}

func (a *App) listExternal(ctx context.Context, client *api.Client, driver string, p *paging) error {
	all := &hostv1.ListExternalResponse{}
	var err error
	all.Volumes, all.NextToken, err = entries(p, func(size int32, token string) ([]*hostv1.ExternalVolume, string, error) {
		resp, err := client.Volumes.ListExternal(ctx, &hostv1.ListExternalRequest{
			PluginId: driver, PerPage: size, PageToken: token,
		})
		return resp.GetVolumes(), resp.GetNextToken(), err
	})
	return a.Print(all, err, func() {
		t := NewTable("EXTERNAL ID", "SIZE", "CONDITION", "OF SNAPSHOT", "CLONE OF", "PUBLISHED ON")
		for _, v := range all.GetVolumes() {
			t.Row(v.GetExternalId(), size(v.GetCapacity()), condition(v.GetAbnormal(), v.GetCondition()),
				v.GetSnapshotId(), v.GetCloneId(), strings.Join(v.GetPublishedNodeIds(), " "))
		}
		a.List(t, "driver %q holds no volumes", driver)
	})
}

// condition is a cell with CSI's VolumeCondition.
func condition(abnormal bool, text string) Cell {
	if abnormal {
		return Cell{"abnormal: " + text, Red}
	}
	return Cell{text, ""}
}

func (a *App) showVolume(m *hostv1.GetVolumeResponse) {
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
	t.Row("Parameters", joinMap(spec.GetParameters()))
	t.some("Changed to", joinMap(v.GetMutableParameters()))
	t.Row("Context", joinMap(spec.GetContext()))
	t.Row("Secrets", joinMap(spec.GetSecrets()))
	t.Row("Created", age(v.GetCreatedAt()))
	addUsage(t, m.GetUsage())
	addConditions(t, m.GetConditions())
	a.Show(t)
	if len(v.GetClaims()) == 0 {
		a.heading("No claims")
		return
	}
	claims := NewTable("WORKLOAD", "NODE", "MODE", "STATE", "TOKEN", "AGE", "LAST ERROR")
	for _, c := range v.GetClaims() {
		claims.Row(c.GetWorkload(), c.GetNode(), c.GetMode(), claimState(c.GetState()), c.GetIndex(), age(c.GetTakenAt()),
			c.GetLastError())
	}
	a.Section("", claims)
}

func addUsage(t *Table, u *hostv1.VolumeUsage) {
	if u.GetBytesTotal() > 0 {
		t.Row("Bytes used", fmt.Sprintf("%s of %s", cmp.Or(size(u.GetBytesUsed()), "0 B"), size(u.GetBytesTotal())))
	}
	if u.GetInodesTotal() > 0 {
		t.Row("Inodes used", fmt.Sprintf("%d of %d", u.GetInodesUsed(), u.GetInodesTotal()))
	}
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

func (a *App) volumeExplain() *cobra.Command {
	return &cobra.Command{
		Use: "explain ID", Short: "Show who holds a volume, what each claim waits for, and what to do",
		Long: `Show who holds a volume on which node, what each claim waits for and since when, the last
error, what happens next by itself, and the command to run when that is not enough.`,
		Example: "pannier volume explain data",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			resp, err := client.Volumes.ExplainVolume(ctx, &hostv1.ExplainVolumeRequest{
				Namespace: a.namespaceOr(claim.DefaultNamespace), Id: args[0],
			})
			return a.Print(resp, err, func() { a.explainVolume(args[0], resp) })
		}),
	}
}

func (a *App) explainVolume(id string, m *hostv1.ExplainVolumeResponse) {
	a.Say("volume %q: %s", id, m.GetSummary())
	if len(m.GetConditions()) > 0 {
		t := NewTable()
		addConditions(t, m.GetConditions())
		a.heading("")
		a.Show(t)
	}
	for _, c := range m.GetClaims() {
		t := NewTable()
		t.Row("Workload", c.GetClaim().GetWorkload())
		t.Row("Claim", fmt.Sprintf("%s, token %d", c.GetClaim().GetMode(), c.GetClaim().GetIndex()))
		t.Row("State", claimState(c.GetClaim().GetState()))
		t.Row("Since", since(c.GetSince()))
		node := nodeStatus(c.GetNodeStatus())
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
			t.Row("Run", Cell{c.GetCommand(), Bold})
		}
		a.heading("")
		a.Show(t)
	}
}

// claimState is a cell with a claim's state.
func claimState(state string) Cell {
	if state == string(claim.Taken) {
		return Cell{state, Green}
	}
	return Cell{state, Yellow}
}

// since formats how long ago a time was, with the word ago.
func since(at *timestamppb.Timestamp) string {
	if at == nil {
		return ""
	}
	return span(time.Since(at.AsTime())) + " ago"
}
