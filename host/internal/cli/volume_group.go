package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *App) groupCommand() *cobra.Command {
	return a.Noun("group", "Snapshots of several volumes as of one moment", a.groupCreate(), a.groupStatus(),
		a.groupDelete())
}

func (a *App) groupCreate() *cobra.Command {
	var workload string
	var flags driverFlags
	cmd := &cobra.Command{
		Use: "create NAME [VOLUME...]", Short: "Take snapshots of several volumes as of one moment",
		Long: `Take snapshots of several volumes of one driver as of one moment: what a program has written to
one of them before it wrote to another one is in the snapshots too. Repeating it gives the same
snapshots.`,
		Example: "pannier volume snapshot group create before-the-upgrade -workload db",
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return Usage("NAME is missing")
			case (len(args) == 1) == (workload == ""):
				return Usage("give the volumes, or a workload with -workload")
			}
			return nil
		},
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			parameters, secrets, err := flags.read()
			if err != nil {
				return err
			}
			volumes := args[1:]
			if workload != "" {
				if volumes, err = a.volumesOf(ctx, client, workload); err != nil {
					return err
				}
			}
			resp, err := client.Volumes.CreateGroupSnapshot(ctx, &hostv1.CreateGroupSnapshotRequest{
				Namespace: a.namespaceOr(claim.DefaultNamespace), VolumeIds: volumes, Name: args[0],
				Parameters: parameters, Secrets: secrets,
			})
			return a.Print(resp, err, func() { a.showGroup(resp.GetGroup()) })
		}),
	}
	cmd.Flags().StringVar(&workload, "workload", "", "all volumes of this workload's `ID`")
	flags.add(cmd)
	return cmd
}

// volumesOf returns the ids of a workload's volumes.
func (a *App) volumesOf(ctx context.Context, client *api.Client, workload string) (ids []string, err error) {
	resp, err := client.Workloads.GetWorkload(ctx, &hostv1.GetWorkloadRequest{
		Namespace: a.namespaceOr(claim.DefaultNamespace), Id: workload,
	})
	if err != nil {
		return nil, hint(err, ExitNotFound, "%s", workloads.known)
	}
	for _, v := range resp.GetWorkload().GetSpec().GetVolumes() {
		if v.GetDriver() == "" {
			ids = append(ids, v.GetSource())
		}
	}
	if len(ids) == 0 {
		return nil, Coded(ExitRefused, fmt.Errorf("workload %q has no registered volumes", workload))
	}
	return ids, nil
}

func (a *App) groupStatus() *cobra.Command {
	var secretFlags []string
	cmd := &cobra.Command{
		Use: "status DRIVER GROUP", Short: "Show a group's snapshots",
		Example: "pannier volume snapshot group status local group-0abc",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			secrets, err := readSecrets(secretFlags)
			if err != nil {
				return err
			}
			resp, err := client.Volumes.GetGroupSnapshot(ctx, &hostv1.GetGroupSnapshotRequest{
				PluginId: args[0], GroupId: args[1], Secrets: secrets,
			})
			return a.Print(resp,
				hint(err, ExitNotFound, "pannier volume snapshot list -driver %s lists the snapshots with their groups",
					args[0]), func() { a.showGroup(resp.GetGroup()) })
		}),
	}
	secretsFlag(cmd, &secretFlags)
	return cmd
}

func (a *App) groupDelete() *cobra.Command {
	var secretFlags []string
	cmd := &cobra.Command{
		Use: "delete DRIVER GROUP", Short: "Delete a group with its snapshots at their driver",
		Example: "pannier volume snapshot group delete local group-0abc",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			secrets, err := readSecrets(secretFlags)
			if err != nil {
				return err
			}
			resp, err := client.Volumes.DeleteGroupSnapshot(ctx, &hostv1.DeleteGroupSnapshotRequest{
				PluginId: args[0], GroupId: args[1], Secrets: secrets,
			})
			return a.Done(resp, err, "group snapshot %s is deleted", args[1])
		}),
	}
	secretsFlag(cmd, &secretFlags)
	return cmd
}

func (a *App) showGroup(g *hostv1.GroupSnapshot) {
	a.Say("group snapshot %s: %s", g.GetGroupId(), readiness(g))
	a.showSnapshots(g.GetSnapshots())
}
