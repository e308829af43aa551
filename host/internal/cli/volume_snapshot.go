package cli

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/pflag"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func snapshotVerbs() []verb {
	var name, driver string
	var page paging
	return []verb{
		{
			use: "create VOLUME [NAME]", short: "Take a snapshot of a volume", example: "data -name before-the-upgrade",
			long: `Take a snapshot of a volume. NAME, or -name, is its name in the namespace: snapshot_id in a volume
spec takes it, and so does delete. Repeating the command gives the same snapshot; a name that another
volume's snapshot has is refused. Without a name it gets one that contains the time.`,
			parameters: true,
			flags:      func(f *pflag.FlagSet) { f.StringVar(&name, "name", "", "the snapshot's `name` in the namespace") },
			run: func(ctx context.Context, c *call) error {
				if len(c.args) == 2 && name != "" {
					return Usage("NAME and -name say the same; give one of them")
				}
				resp, err := c.Volumes.CreateSnapshot(ctx, &hostv1.CreateSnapshotRequest{
					Namespace: c.inNamespace(), VolumeId: c.args[0], Name: cmp.Or(name, c.arg(1)),
					Parameters: c.parameters, Secrets: c.secrets,
				})
				s := resp.GetSnapshot()
				return c.Done(resp, err, "snapshot %q (%s) of volume %q: %s", s.GetName(), s.GetSnapshotId(), c.args[0],
					readiness(s))
			},
		},
		{
			use: "delete DRIVER SNAPSHOT", short: "Delete a snapshot at its driver", example: "local before-the-upgrade",
			long:    `Delete a snapshot at its driver. SNAPSHOT is its name in the namespace, or the driver's id of it.`,
			secrets: true,
			run: order("snapshot %[2]s is deleted", func(ctx context.Context, c *call) (any, error) {
				resp, err := c.Volumes.DeleteSnapshot(ctx, &hostv1.DeleteSnapshotRequest{
					PluginId: c.args[0], SnapshotId: c.args[1], Namespace: c.inNamespace(), Secrets: c.secrets,
				})
				return resp, hint(err, ExitNotFound, "pannier volume snapshot list -driver %s lists them", c.args[0])
			}),
		},
		{
			use: "list -driver ID", short: "List a driver's snapshots", example: "-driver local", secrets: true,
			flags: func(f *pflag.FlagSet) {
				f.StringVar(&driver, "driver", "", "the driver's `ID`")
				page.flags(f)
			},
			needs: []string{"driver"},
			run: func(ctx context.Context, c *call) (err error) {
				all := &hostv1.ListSnapshotsResponse{}
				all.Snapshots, all.NextToken, err = entries(&page,
					func(size int32, token string) ([]*hostv1.Snapshot, string, error) {
						resp, err := c.Volumes.ListSnapshots(ctx, &hostv1.ListSnapshotsRequest{
							PluginId: driver, PerPage: size, PageToken: token, Secrets: c.secrets,
						})
						return resp.GetSnapshots(), resp.GetNextToken(), err
					})
				return list(c.Printer, all, err, all.GetSnapshots(), snapshotColumns)
			},
		},
	}
}

var snapshotColumns = columns[*hostv1.Snapshot]{
	[]string{"SNAPSHOT", "NAME", "VOLUME", "EXTERNAL VOLUME", "SIZE", "READY", "AGE", "GROUP"},
	func(t *Table, s *hostv1.Snapshot) {
		t.Row(s.GetSnapshotId(), s.GetName(), s.GetVolume(), s.GetExternalVolumeId(), size(s.GetSize()),
			yesOr(s.GetReady(), Yellow), age(s.GetCreatedAt()), s.GetGroupId())
	},
	"no snapshots",
}

// readiness is how a line of text says whether a snapshot can be used.
func readiness(snapshot interface{ GetReady() bool }) string {
	if snapshot.GetReady() {
		return "ready"
	}
	return "not ready yet"
}

func groupVerbs() []verb {
	var workload string
	return []verb{
		{
			use: "create NAME [VOLUME...]", short: "Take snapshots of several volumes as of one moment",
			long: `Take snapshots of several volumes of one driver as of one moment: what a program has written to
one of them before it wrote to another one is in the snapshots too. Repeating it gives the same
snapshots.`,
			example: "before-the-upgrade -workload db", parameters: true,
			flags: func(f *pflag.FlagSet) {
				f.StringVar(&workload, "workload", "", "all volumes of this workload's `ID`")
			},
			run: func(ctx context.Context, c *call) (err error) {
				volumes := c.args[1:]
				switch {
				case (len(volumes) == 0) == (workload == ""):
					return Usage("give the volumes, or a workload with -workload")
				case workload != "":
					if volumes, err = volumesOf(ctx, c, workload); err != nil {
						return err
					}
				}
				resp, err := c.Volumes.CreateGroupSnapshot(ctx, &hostv1.CreateGroupSnapshotRequest{
					Namespace: c.inNamespace(), VolumeIds: volumes, Name: c.args[0],
					Parameters: c.parameters, Secrets: c.secrets,
				})
				return showGroup(c, resp, err)
			},
		},
		{
			use: "status DRIVER GROUP", short: "Show a group's snapshots", example: "local group-0abc", secrets: true,
			run: func(ctx context.Context, c *call) error {
				resp, err := c.Volumes.GetGroupSnapshot(ctx, &hostv1.GetGroupSnapshotRequest{
					PluginId: c.args[0], GroupId: c.args[1], Secrets: c.secrets,
				})
				return showGroup(c, resp, hint(err, ExitNotFound,
					"pannier volume snapshot list -driver %s lists the snapshots with their groups", c.args[0]))
			},
		},
		{
			use: "delete DRIVER GROUP", short: "Delete a group with its snapshots at their driver", secrets: true,
			example: "local group-0abc",
			run: order("group snapshot %[2]s is deleted", func(ctx context.Context, c *call) (any, error) {
				return c.Volumes.DeleteGroupSnapshot(ctx, &hostv1.DeleteGroupSnapshotRequest{
					PluginId: c.args[0], GroupId: c.args[1], Secrets: c.secrets,
				})
			}),
		},
	}
}

// volumesOf returns the ids of a workload's volumes.
func volumesOf(ctx context.Context, c *call, workload string) (ids []string, err error) {
	resp, err := c.Workloads.GetWorkload(ctx, &hostv1.GetWorkloadRequest{Namespace: c.inNamespace(), Id: workload})
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

func showGroup(c *call, m interface{ GetGroup() *hostv1.GroupSnapshot }, err error) error {
	return c.Print(m, err, func() {
		g := m.GetGroup()
		c.Say("group snapshot %s: %s", g.GetGroupId(), readiness(g))
		snapshotColumns.show(c.Printer, g.GetSnapshots())
	})
}
