package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *App) snapshotCommand() *cobra.Command {
	return a.Noun("snapshot", "Snapshots of volumes", a.snapshotCreate(), a.snapshotDelete(), a.snapshotList(),
		a.groupCommand())
}

func (a *App) snapshotCreate() *cobra.Command {
	var flags driverFlags
	var name string
	cmd := &cobra.Command{
		Use: "create VOLUME [NAME]", Short: "Take a snapshot of a volume",
		Long: `Take a snapshot of a volume. NAME, or -name, is its name in the namespace: snapshot_id in a volume
spec takes it, and so does delete. Repeating the command gives the same snapshot; a name that another
volume's snapshot has is refused. Without a name it gets one that contains the time.`,
		Example: "pannier volume snapshot create data -name before-the-upgrade",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			if len(args) == 2 {
				if name != "" {
					return Usage("NAME and -name say the same; give one of them")
				}
				name = args[1]
			}
			parameters, secrets, err := flags.read()
			if err != nil {
				return err
			}
			resp, err := client.Volumes.CreateSnapshot(ctx, &hostv1.CreateSnapshotRequest{
				Namespace: a.namespaceOr(claim.DefaultNamespace), VolumeId: args[0], Name: name,
				Parameters: parameters, Secrets: secrets,
			})
			return a.Print(resp, err, func() {
				s := resp.GetSnapshot()
				a.Say("snapshot %q (%s) of volume %q: %s", s.GetName(), s.GetSnapshotId(), args[0], readiness(s))
			})
		}),
	}
	cmd.Flags().StringVar(&name, "name", "", "the snapshot's `name` in the namespace")
	flags.add(cmd)
	return cmd
}

// readiness is how a line of text says whether a snapshot can be used.
func readiness(snapshot interface{ GetReady() bool }) string {
	if snapshot.GetReady() {
		return "ready"
	}
	return "not ready yet"
}

func (a *App) snapshotDelete() *cobra.Command {
	var secretFlags []string
	cmd := &cobra.Command{
		Use: "delete DRIVER SNAPSHOT", Short: "Delete a snapshot at its driver",
		Long:    `Delete a snapshot at its driver. SNAPSHOT is its name in the namespace, or the driver's id of it.`,
		Example: "pannier volume snapshot delete local before-the-upgrade",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			secrets, err := readSecrets(secretFlags)
			if err != nil {
				return err
			}
			resp, err := client.Volumes.DeleteSnapshot(ctx, &hostv1.DeleteSnapshotRequest{
				PluginId: args[0], SnapshotId: args[1], Namespace: a.namespaceOr(claim.DefaultNamespace), Secrets: secrets,
			})
			return a.Done(resp, hint(err, ExitNotFound, "pannier volume snapshot list -driver %s lists them", args[0]),
				"snapshot %s is deleted", args[1])
		}),
	}
	secretsFlag(cmd, &secretFlags)
	return cmd
}

func (a *App) snapshotList() *cobra.Command {
	var driver string
	var page paging
	var secretFlags []string
	cmd := &cobra.Command{
		Use: "list -driver ID", Short: "List a driver's snapshots",
		Example: "pannier volume snapshot list -driver local",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
			secrets, err := readSecrets(secretFlags)
			if err != nil {
				return err
			}
			all := &hostv1.ListSnapshotsResponse{}
			all.Snapshots, all.NextToken, err = entries(&page, func(size int32, token string) ([]*hostv1.Snapshot, string,
				error,
			) {
				resp, err := client.Volumes.ListSnapshots(ctx, &hostv1.ListSnapshotsRequest{
					PluginId: driver, PerPage: size, PageToken: token, Secrets: secrets,
				})
				return resp.GetSnapshots(), resp.GetNextToken(), err
			})
			return a.Print(all, err, func() { a.showSnapshots(all.GetSnapshots()) })
		}),
	}
	cmd.Flags().StringVar(&driver, "driver", "", "the driver's `ID`")
	page.flags(cmd)
	secretsFlag(cmd, &secretFlags)
	require(cmd, "driver")
	return cmd
}

func (a *App) showSnapshots(snapshots []*hostv1.Snapshot) {
	t := NewTable("SNAPSHOT", "NAME", "VOLUME", "EXTERNAL VOLUME", "SIZE", "READY", "AGE", "GROUP")
	for _, s := range snapshots {
		ready := Cell{"yes", Green}
		if !s.GetReady() {
			ready = Cell{"no", Yellow}
		}
		t.Row(s.GetSnapshotId(), s.GetName(), s.GetVolume(), s.GetExternalVolumeId(), size(s.GetSize()), ready,
			age(s.GetCreatedAt()), s.GetGroupId())
	}
	a.List(t, "no snapshots")
}
