package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// externalPage is how many volumes or snapshots a driver is asked for at once.
const externalPage = 100

func (a *app) volumeStatus() *cobra.Command {
	var read hostv1.ReadOptions
	cmd := &cobra.Command{
		Use: "status [ID]", Short: "List the volumes, or show one with its claims",
		Args: between(0, "ID"), ValidArgsFunction: a.completeIDs(volumeIDs),
		RunE: a.do(func(ctx context.Context, args []string) error {
			client, err := a.api()
			if err != nil {
				return err
			}
			if len(args) == 0 {
				return a.listVolumes(ctx, client, &hostv1.ListVolumesRequest{Namespace: a.namespaceOr("*"), Read: &read})
			}
			resp, err := client.Volumes.GetVolume(ctx, connect.NewRequest(&hostv1.GetVolumeRequest{
				Namespace: a.namespaceOr(claim.DefaultNamespace), Id: args[0], Read: &read,
			}))
			if err != nil {
				return hintVolume(err)
			}
			a.noteAge(resp.Msg.GetMeta(), &read)
			return a.print(resp.Msg, func() error { return a.showVolume(resp.Msg.GetVolume(), resp.Msg.GetUsage()) })
		}),
	}
	staleFlag(cmd, &read)
	return cmd
}

func (a *app) volumeList() *cobra.Command {
	var driver, node string
	var external bool
	var read hostv1.ReadOptions
	cmd := &cobra.Command{
		Use: "list", Short: "List volumes by driver or node, or what a driver itself holds",
		Args: exactly(),
		RunE: a.do(func(ctx context.Context, _ []string) error {
			if external && (driver == "" || node != "") {
				return &usageError{err: errors.New("-external goes with -driver, and not with -node")}
			}
			client, err := a.api()
			if err != nil {
				return err
			}
			if external {
				return a.listExternal(ctx, client, driver)
			}
			return a.listVolumes(ctx, client, &hostv1.ListVolumesRequest{
				Namespace: a.namespaceOr("*"), PluginId: driver, Node: node, Read: &read,
			})
		}),
	}
	cmd.Flags().StringVar(&driver, "driver", "", "only the volumes of this driver's `ID`")
	cmd.Flags().StringVar(&node, "node", "", "only the volumes with a claim on this `NODE`")
	cmd.Flags().BoolVar(&external, "external", false, "ask the driver, registered or not")
	staleFlag(cmd, &read)
	return cmd
}

func (a *app) listVolumes(ctx context.Context, client *api.Client, req *hostv1.ListVolumesRequest) error {
	resp, err := client.Volumes.ListVolumes(ctx, connect.NewRequest(req))
	if err != nil {
		return err
	}
	a.noteAge(resp.Msg.GetMeta(), req.GetRead())
	return a.print(resp.Msg, func() error {
		if len(resp.Msg.GetVolumes()) == 0 {
			a.note("no volumes; make one with pannier volume init and pannier volume create")
			return nil
		}
		t := newTable("ID", "NAMESPACE", "DRIVER", "DRIVER HEALTH", "SIZE", "ACCESS MODE", "ATTACHMENT", "CLAIMS", "AGE")
		for _, v := range resp.Msg.GetVolumes() {
			t.row(v.GetSpec().GetId(), v.GetSpec().GetNamespace(), v.GetSpec().GetPluginId(), healthy(v.GetDriverHealthy()),
				size(v.GetCapacity()), v.GetAccessMode(), v.GetAttachmentMode(), len(v.GetClaims()), age(v.GetCreatedAt()))
		}
		return a.show(t)
	})
}

func (a *app) listExternal(ctx context.Context, client *api.Client, driver string) error {
	all := &hostv1.ListExternalResponse{}
	for token := ""; ; {
		resp, err := client.Volumes.ListExternal(ctx, connect.NewRequest(&hostv1.ListExternalRequest{
			PluginId: driver, PerPage: externalPage, PageToken: token,
		}))
		if err != nil {
			return hint(err, ExitNotFound, "pannier driver status lists the drivers")
		}
		all.Volumes = append(all.Volumes, resp.Msg.GetVolumes()...)
		// A driver that gives the same token again would be asked for ever.
		next := resp.Msg.GetNextToken()
		if next == "" || next == token {
			break
		}
		token = next
	}
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

// condition is a cell for what CSI calls VolumeCondition.
func condition(abnormal bool, text string) cell {
	if abnormal {
		return cell{"abnormal: " + text, red}
	}
	return cell{text, ""}
}

func (a *app) showVolume(v *hostv1.Volume, usage *hostv1.VolumeUsage) error {
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
	t.row("Context", joinMap(spec.GetContext()))
	t.row("Secrets", joinMap(spec.GetSecrets()))
	t.row("Created", age(v.GetCreatedAt()))
	addUsage(t, usage)
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
		claims.row(c.GetWorkload(), c.GetNode(), c.GetMode(), claimState(c.GetState()), c.GetIndex(), age(c.GetTakenAt()), c.GetLastError())
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
	t.row("Condition", condition(u.GetAbnormal(), u.GetCondition()))
}

func orZero(text string) string {
	if text == "" {
		return "0 B"
	}
	return text
}
