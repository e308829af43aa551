package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *app) volumeStatus() *cobra.Command {
	var read hostv1.ReadOptions
	cmd := &cobra.Command{
		Use: "status [ID]", Short: "List the volumes, or show one with its claims",
		Example: "pannier volume status data",
		Args:    between(0, "ID"), ValidArgsFunction: a.completeIDs(volumeIDs),
		RunE: a.withClient(func(ctx context.Context, client *api.Client, args []string) error {
			if len(args) == 0 {
				return a.listVolumes(ctx, client, &hostv1.ListVolumesRequest{Namespace: a.namespaceOr("*"), Read: &read})
			}
			resp, err := client.Volumes.GetVolume(ctx, &hostv1.GetVolumeRequest{
				Namespace: a.namespaceOr(claim.DefaultNamespace), Id: args[0], Read: &read,
			})
			if err != nil {
				return hintVolume(err, args[0])
			}
			a.noteAge(resp.GetMeta(), &read)
			return a.print(resp, func() error { return a.showVolume(resp) })
		}),
	}
	staleFlag(cmd, &read)
	return cmd
}

func (a *app) volumeList() *cobra.Command {
	var driver, node string
	var external bool
	var page paging
	var read hostv1.ReadOptions
	cmd := &cobra.Command{
		Use: "list", Short: "List volumes by driver or node, or what a driver itself holds",
		Example: "pannier volume list -driver local -external",
		Args:    exactly(),
		RunE: a.withClient(func(ctx context.Context, client *api.Client, _ []string) error {
			if external && (driver == "" || node != "") {
				return &usageError{err: errors.New("-external goes with -driver, and not with -node")}
			}
			if !external && page.given() {
				return &usageError{err: errors.New("-per-page and -page-token go with -external")}
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

func (a *app) listVolumes(ctx context.Context, client *api.Client, req *hostv1.ListVolumesRequest) error {
	resp, err := client.Volumes.ListVolumes(ctx, req)
	if err != nil {
		return hintDriver(err)
	}
	a.noteAge(resp.GetMeta(), req.GetRead())
	return a.print(resp, func() error {
		if len(resp.GetVolumes()) == 0 {
			a.note("no volumes; make one with pannier volume init and pannier volume create")
			return nil
		}
		t := newTable("ID", "NAMESPACE", "DRIVER", "DRIVER HEALTH", "SIZE", "ACCESS MODE", "ATTACHMENT", "CLAIMS", "AGE")
		for _, v := range resp.GetVolumes() {
			t.row(v.GetSpec().GetId(), v.GetSpec().GetNamespace(), v.GetSpec().GetPluginId(), healthy(v.GetDriverHealthy()),
				size(v.GetCapacity()), v.GetAccessMode(), v.GetAttachmentMode(), len(v.GetClaims()), age(v.GetCreatedAt()))
		}
		return a.show(t)
	})
}

func (a *app) listExternal(ctx context.Context, client *api.Client, driver string, p *paging) error {
	all := &hostv1.ListExternalResponse{}
	var err error
	all.Volumes, all.NextToken, err = entries(p, func(size int32, token string) ([]*hostv1.ExternalVolume, string, error) {
		resp, err := client.Volumes.ListExternal(ctx, &hostv1.ListExternalRequest{
			PluginId: driver, PerPage: size, PageToken: token,
		})
		if err != nil {
			return nil, "", hintDriver(err)
		}
		return resp.GetVolumes(), resp.GetNextToken(), nil
	})
	if err != nil {
		return err
	}
	a.noteNext(all.GetNextToken())
	return a.print(all, func() error {
		if len(all.GetVolumes()) == 0 {
			a.note("driver %q holds no volumes", driver)
			return nil
		}
		t := newTable("EXTERNAL ID", "SIZE", "CONDITION", "OF SNAPSHOT", "CLONE OF", "PUBLISHED ON")
		for _, v := range all.GetVolumes() {
			t.row(v.GetExternalId(), size(v.GetCapacity()), condition(v.GetAbnormal(), v.GetCondition()),
				v.GetSnapshotId(), v.GetCloneId(), strings.Join(v.GetPublishedNodeIds(), " "))
		}
		return a.show(t)
	})
}

// condition is a cell with CSI's VolumeCondition.
func condition(abnormal bool, text string) cell {
	if abnormal {
		return cell{"abnormal: " + text, red}
	}
	return cell{text, ""}
}

func (a *app) showVolume(m *hostv1.GetVolumeResponse) error {
	v := m.GetVolume()
	spec := v.GetSpec()
	t := newTable()
	t.row("ID", spec.GetId())
	t.row("Name", spec.GetName())
	t.row("Namespace", spec.GetNamespace())
	t.row("External id", spec.GetExternalId())
	t.row("Driver", fmt.Sprintf("%s (%s %s)", spec.GetPluginId(), v.GetProvider(), v.GetProviderVersion()))
	t.row("Driver health", healthy(v.GetDriverHealthy()))
	if v.GetDriverMessage() != "" {
		t.row("Driver message", v.GetDriverMessage())
	}
	t.row("Size", size(v.GetCapacity()))
	for _, c := range spec.GetCapabilities() {
		t.row("May be used as", c.GetAccessMode()+", "+c.GetAttachmentMode())
	}
	t.row("In use as", strings.Trim(v.GetAccessMode()+", "+v.GetAttachmentMode(), ", "))
	if o := spec.GetMountOptions(); o != nil {
		t.row("Mount options", strings.TrimSpace(o.GetFsType()+" "+strings.Join(o.GetMountFlags(), ",")))
	}
	for _, topology := range v.GetTopologies() {
		t.row("Topology", joinMap(topology.GetSegments()))
	}
	t.row("Parameters", joinMap(spec.GetParameters()))
	if len(v.GetMutableParameters()) > 0 {
		t.row("Changed to", joinMap(v.GetMutableParameters()))
	}
	t.row("Context", joinMap(spec.GetContext()))
	t.row("Secrets", joinMap(spec.GetSecrets()))
	t.row("Created", age(v.GetCreatedAt()))
	addUsage(t, m.GetUsage())
	addConditions(t, m.GetConditions())
	if err := a.show(t); err != nil {
		return err
	}
	if len(v.GetClaims()) == 0 {
		_, err := fmt.Fprintln(a.out, "\nNo claims")
		return err
	}
	if _, err := fmt.Fprintln(a.out); err != nil {
		return err
	}
	claims := newTable("WORKLOAD", "NODE", "MODE", "STATE", "TOKEN", "AGE", "LAST ERROR")
	for _, c := range v.GetClaims() {
		claims.row(c.GetWorkload(), c.GetNode(), c.GetMode(), claimState(c.GetState()), c.GetIndex(), age(c.GetTakenAt()),
			c.GetLastError())
	}
	return a.show(claims)
}

func addUsage(t *table, u *hostv1.VolumeUsage) {
	if u == nil {
		return
	}
	if u.GetBytesTotal() > 0 {
		t.row("Bytes used", fmt.Sprintf("%s of %s", orZero(size(u.GetBytesUsed())), size(u.GetBytesTotal())))
	}
	if u.GetInodesTotal() > 0 {
		t.row("Inodes used", fmt.Sprintf("%d of %d", u.GetInodesUsed(), u.GetInodesTotal()))
	}
}

// addConditions adds what the driver's controller and nodes say of the volume.
func addConditions(t *table, all []*hostv1.VolumeCondition) {
	for _, c := range all {
		of := "Condition"
		if c.GetNode() != "" {
			of += " on node " + c.GetNode()
		}
		t.row(of, condition(c.GetAbnormal(), cmp.Or(c.GetMessage(), "normal")))
	}
}

func orZero(text string) string {
	if text == "" {
		return "0 B"
	}
	return text
}

func (a *app) volumeExplain() *cobra.Command {
	return &cobra.Command{
		Use: "explain ID", Short: "Show who holds a volume, what each claim waits for, and what to do",
		Long: `Show who holds a volume on which node, what each claim waits for and since when, the last
error, what happens next by itself, and the command to run when that is not enough.`,
		Example: "pannier volume explain data",
		Args:    exactly("ID"), ValidArgsFunction: a.completeIDs(volumeIDs),
		RunE: a.withClient(func(ctx context.Context, client *api.Client, args []string) error {
			resp, err := client.Volumes.ExplainVolume(ctx, &hostv1.ExplainVolumeRequest{
				Namespace: a.namespaceOr(claim.DefaultNamespace), Id: args[0],
			})
			if err != nil {
				return hintVolume(err, args[0])
			}
			return a.print(resp, func() error { return a.explainVolume(args[0], resp) })
		}),
	}
}

func (a *app) explainVolume(id string, m *hostv1.ExplainVolumeResponse) error {
	if err := a.say(fmt.Sprintf("volume %q: %s", id, m.GetSummary())); err != nil {
		return err
	}
	if len(m.GetConditions()) > 0 {
		t := newTable()
		addConditions(t, m.GetConditions())
		if err := a.section(t); err != nil {
			return err
		}
	}
	for _, c := range m.GetClaims() {
		t := newTable()
		t.row("Workload", c.GetClaim().GetWorkload())
		t.row("Claim", fmt.Sprintf("%s, token %d", c.GetClaim().GetMode(), c.GetClaim().GetIndex()))
		t.row("State", claimState(c.GetClaim().GetState()))
		t.row("Since", since(c.GetSince()))
		node := nodeStatus(c.GetNodeStatus())
		node.text = c.GetClaim().GetNode() + ", " + node.text
		if c.GetLastHeard() != nil {
			node.text += ", heard from " + since(c.GetLastHeard())
		}
		t.row("Node", node)
		if c.GetNodeStatus() == string(claim.NodeDisconnected) {
			t.row("Released", ahead(c.GetLetGoAt()))
		}
		t.row("Waits for", c.GetWaitsFor())
		if c.GetTries() > 0 {
			t.row("Tries", c.GetTries())
		}
		if c.GetLastError() != "" {
			t.row("Last error", cell{c.GetLastError(), red})
		}
		if c.GetNextTryAt() != nil {
			t.row("Next try", ahead(c.GetNextTryAt()))
		}
		t.row("Next", c.GetNext())
		if c.GetCommand() != "" {
			t.row("Run", cell{c.GetCommand(), bold})
		}
		if err := a.section(t); err != nil {
			return err
		}
	}
	return nil
}

// claimState is a cell with a claim's state.
func claimState(state string) cell {
	if state == string(claim.Taken) {
		return cell{state, green}
	}
	return cell{state, yellow}
}

// since formats how long ago a time was, with the word ago.
func since(at *timestamppb.Timestamp) string {
	if at == nil {
		return ""
	}
	return span(time.Since(at.AsTime())) + " ago"
}
