package cli

import (
	"cmp"
	"context"
	_ "embed" // for the spec that init writes
	"errors"
	"fmt"
	"os"
	"path"
	"time"

	"github.com/spf13/pflag"

	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/internal/bytesize"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func volumeNoun() noun {
	verbs := append(volumeSpecVerbs(), volumeChangeVerbs()...)
	return nounOf("volume", "CSI volumes", append(verbs, volumeStatusVerbs()...),
		nounOf("snapshot", "Snapshots of volumes", snapshotVerbs(),
			nounOf("group", "Snapshots of several volumes as of one moment", groupVerbs())))
}

//go:embed volume_init.hcl
var volumeInit string

// writeSpec writes a spec to start from to the file of the argument, or else to one that is named for its noun. then
// is the command that takes it.
func writeSpec(c *call, noun, text, then string) error {
	path := cmp.Or(c.arg(0), noun+".hcl")
	if path == "-" {
		c.write(text)
		return c.outErr
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return exists(err, path, "name another file: pannier "+noun+" init FILE")
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	c.Note("wrote %s; edit it, then: %s %s", path, then, path)
	return nil
}

// volumeSpecVerbs take or write a spec.
func volumeSpecVerbs() []verb {
	var dryRun bool
	var onNode string
	return []verb{
		{
			use: "init [FILE]", short: "Write a volume spec to start from (volume.hcl; - is standard output)",
			local: func(_ context.Context, c *call) error {
				return writeSpec(c, "volume", volumeInit, "pannier volume create")
			},
		},
		{
			use: "validate FILE", short: "Check a volume spec, without an agent", example: "volume.hcl",
			long: `Check a volume spec, without an agent: all that is wrong with it is reported with file and line.
The files that secrets_from names are read. FILE may be one of Nomad's specs; - is standard input.
pannier volume create -dry-run also asks the agent and the driver.`,
			local: func(_ context.Context, c *call) error {
				spec, err := c.readVolume()
				for key := range spec.GetSecrets() {
					spec.Secrets[key] = "[REDACTED]"
				}
				return c.Done(spec, err, "volume %q of driver %q in namespace %q is valid",
					spec.GetId(), spec.GetPluginId(), spec.GetNamespace())
			},
		},
		{
			use: "create FILE", short: "Make a volume at its driver and register it",
			long: `Make a volume at its driver and register it. FILE is a volume spec; - is standard
input. Repeating it gives the same volume. -dry-run makes nothing: the agent checks the
definition, and that a healthy controller of the driver can create such a volume and has room.
A driver whose volumes are bound to a node makes it on the node that the command calls, on the
one that -node names, or where the spec's topology_request says.`,
			example: "volume.hcl\n-node web-3 volume.hcl\n-dry-run volume.hcl",
			flags: func(f *pflag.FlagSet) {
				f.BoolVar(&dryRun, "dry-run", false, "check whether it can be made, and make nothing")
				f.StringVar(&onNode, "node", "", "make it on this `NODE`")
			},
			run: withSpec((*call).readVolume, func(ctx context.Context, c *call, spec *hostv1.VolumeSpec) error {
				if dryRun {
					return checkVolume(ctx, c, spec, onNode)
				}
				resp, err := c.Volumes.CreateVolume(ctx, &hostv1.CreateVolumeRequest{Spec: spec, Node: onNode})
				return c.Done(resp, err, "%s", made("is created", resp.GetVolume()))
			}),
		},
		{
			use: "register FILE", short: "Register an existing volume, or change its definition", example: "volume.hcl",
			long: `Register a volume that exists at its driver, or change its definition. The driver is asked to
validate it. FILE is a volume spec; - is standard input.`,
			run: withSpec((*call).readVolume, func(ctx context.Context, c *call, spec *hostv1.VolumeSpec) error {
				if spec.GetExternalId() == "" {
					return config.Problems{{File: c.args[0], Text: "external_id: is required to register a volume; " +
						"pannier volume create makes one, pannier volume list -external -driver " + spec.GetPluginId() +
						" lists the driver's"}}
				}
				resp, err := c.Volumes.RegisterVolume(ctx, &hostv1.RegisterVolumeRequest{Spec: spec})
				return c.Done(resp, err, "%s", made("is registered", resp.GetVolume()))
			}),
		},
	}
}

// readVolume reads the spec of the first argument and fills in its namespace.
func (c *call) readVolume() (*hostv1.VolumeSpec, error) {
	spec, err := config.ReadVolume(c.args[0])
	if err == nil && spec.GetNamespace() == "" {
		spec.Namespace = c.inNamespace()
	}
	return spec, err
}

func checkVolume(ctx context.Context, c *call, spec *hostv1.VolumeSpec, node string) error {
	resp, err := c.Volumes.CheckVolume(ctx, &hostv1.CheckVolumeRequest{Spec: spec, Node: node})
	if resp.GetExists() {
		return c.Done(resp, err, "volume %q exists with this definition: it would stay as it is", spec.GetId())
	}
	return c.Done(resp, err, "volume %q can be created: driver %q would make it as %q", spec.GetId(), spec.GetPluginId(),
		resp.GetDriverName())
}

func made(what string, v *hostv1.Volume) string {
	text := fmt.Sprintf("volume %q %s: external id %s", v.GetSpec().GetId(), what, v.GetSpec().GetExternalId())
	if v.GetCapacity() > 0 {
		text += ", " + size(v.GetCapacity())
	}
	return text
}

// volumeChangeVerbs change a volume that is registered.
func volumeChangeVerbs() []verb {
	var lowest, highest string
	var force, yes bool
	return []verb{
		{
			use: "expand ID [SIZE]", short: "Grow a volume, mounted or not", example: "data 20GiB",
			long: `Grow a volume, mounted or not. SIZE, such as 10GiB, is the least capacity;
it is the same as -capacity-min.`,
			flags: func(f *pflag.FlagSet) {
				f.StringVar(&lowest, "capacity-min", "", "the least `size` it is to have")
				f.StringVar(&highest, "capacity-max", "", "the most `size` it may have")
			},
			run: func(ctx context.Context, c *call) error {
				if len(c.args) == 2 && lowest != "" {
					return Usage("SIZE and -capacity-min say the same; give one of them")
				}
				req := &hostv1.ExpandVolumeRequest{Namespace: c.inNamespace(), Id: c.args[0]}
				var err error
				if req.CapacityMin, err = capacity("the size", cmp.Or(lowest, c.arg(1))); err != nil {
					return err
				}
				if req.CapacityMax, err = capacity("-capacity-max", highest); err != nil {
					return err
				}
				if req.CapacityMin == 0 && req.CapacityMax == 0 {
					return Usage("a size is missing")
				}
				resp, err := c.Volumes.ExpandVolume(ctx, req)
				return c.Done(resp, err, "volume %q has %s", c.args[0], size(resp.GetVolume().GetCapacity()))
			},
		},
		{
			use: "modify ID -parameter KEY=VALUE", short: "Change a volume's mutable parameters, mounted or not",
			long: `Change parameters of a volume at its driver, mounted or not. Which of them can be changed is up to
the driver; those that are not given stay as they are.`,
			example: "data -parameter readAhead=1MiB", parameters: true, needs: []string{"parameter"},
			run: func(ctx context.Context, c *call) error {
				resp, err := c.Volumes.ModifyVolume(ctx, &hostv1.ModifyVolumeRequest{
					Namespace: c.inNamespace(), Id: c.args[0], Parameters: c.parameters, Secrets: c.secrets,
				})
				return c.Done(resp, err, "volume %q is modified: %s",
					c.args[0], joinMap(resp.GetVolume().GetMutableParameters()))
			},
		},
		{
			use: "deregister ID", short: "Forget a volume, but keep it at its driver", example: "data",
			long: `Forget a volume, but keep it at its driver. Refused while it has claims; -force says what it
leaves behind. It asks first, or needs -yes.`,
			danger: &danger{
				when: &force, concerns: claimsOf,
				risk: "what has volume %[1]q mounted goes on writing, and the next owner writes too",
			},
			flags: func(f *pflag.FlagSet) {
				f.BoolVar(&force, "force", false, "deregister it even while it has claims, and say what is left behind")
			},
			run: func(ctx context.Context, c *call) error {
				resp, err := c.Volumes.DeregisterVolume(ctx, &hostv1.DeregisterVolumeRequest{
					Namespace: c.inNamespace(), Id: c.args[0], Force: force,
				})
				for _, l := range resp.GetLeftBehind() {
					c.Note("warning: left behind: %s claim of workload %q on node %q (%s); its mount and attachment may still exist",
						l.GetMode(), l.GetWorkload(), l.GetNode(), l.GetState())
				}
				return c.Done(resp, err, "volume %q is deregistered; it still exists at its driver", c.args[0])
			},
		},
		{
			use: "delete ID", short: "Delete a volume at its driver, with its data", example: "data", secrets: true,
			long: `Delete a volume at its driver, with its data, and forget it. Refused while it has claims. On a
terminal the command asks first, unless -yes is given.`,
			flags: func(f *pflag.FlagSet) { f.BoolVar(&yes, "yes", false, "do not ask") },
			run: order("volume %q is deleted", func(ctx context.Context, c *call) (any, error) {
				if err := c.confirm(yes, "delete volume %q with its data?", c.args[0]); err != nil {
					return nil, err
				}
				return c.Volumes.DeleteVolume(ctx, &hostv1.DeleteVolumeRequest{
					Namespace: c.inNamespace(), Id: c.args[0], Secrets: c.secrets,
				})
			}),
		},
		detachVerb(),
	}
}

func capacity(name, text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := bytesize.Parse(text)
	if err != nil {
		return 0, Usage("%s: %w", name, err)
	}
	return n, nil
}

func snapshotVerbs() []verb {
	var name, driver string
	var page paging
	var detach bool
	return []verb{
		{
			use: "create VOLUME [NAME]", short: "Take a snapshot of a volume", example: "data -name before-the-upgrade",
			long: `Take a snapshot of a volume, and wait until it can be used. NAME, or -name, is its name in the
namespace: snapshot_id in a volume spec takes it, and so does delete. Repeating the command gives
the same snapshot; a name that another volume's snapshot has is refused. Without a name it gets one
that contains the time.`,
			parameters: true,
			flags: func(f *pflag.FlagSet) {
				f.StringVar(&name, "name", "", "the snapshot's `name` in the namespace")
				detachFlag(f, &detach)
			},
			run: func(ctx context.Context, c *call) error {
				if len(c.args) == 2 && name != "" {
					return Usage("NAME and -name say the same; give one of them")
				}
				req := &hostv1.CreateSnapshotRequest{
					Namespace: c.inNamespace(), VolumeId: c.args[0], Name: cmp.Or(name, c.arg(1)),
					Parameters: c.parameters, Secrets: c.secrets,
				}
				resp, err := untilReady(ctx, c, detach, func() (*hostv1.CreateSnapshotResponse, prepared, error) {
					resp, err := c.Volumes.CreateSnapshot(ctx, req)
					taken := resp.GetSnapshot()
					req.Name = path.Base(taken.GetName()) // also one that it got
					return resp, taken, err
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

// readiness is how a line of text reports whether a snapshot can be used.
func readiness(snapshot prepared) string {
	if snapshot.GetReady() {
		return "ready"
	}
	return "not ready yet"
}

func detachFlag(f *pflag.FlagSet, detach *bool) {
	f.BoolVar(detach, "detach", false, "return at once; the driver may still have to make the snapshot ready to use")
}

// prepared is what a driver has taken and may still have to prepare.
type prepared interface{ GetReady() bool }

const (
	// snapshotPatience bounds the wait for a snapshot, which a driver may have to copy elsewhere.
	snapshotPatience = time.Hour
	// askSoon and askLate are the shortest and the longest time between two questions for it.
	askSoon, askLate = 250 * time.Millisecond, 15 * time.Second
)

// untilReady takes a snapshot, and takes it again, which gives the same one, until it is ready to use (CSI spec,
// CreateSnapshot).
func untilReady[T any](ctx context.Context, c *call, detach bool, take func() (T, prepared, error)) (T, error) {
	defer c.Announce(ctx, func(context.Context) string { return "waiting until the driver has the snapshot ready to use" })()
	began := time.Now()
	for pause := askSoon; ; pause = min(2*pause, askLate) {
		resp, taken, err := take()
		switch {
		case err != nil || detach || taken.GetReady():
			return resp, err
		case time.Since(began) > snapshotPatience:
			return resp, Hinted(fmt.Errorf("the snapshot is taken, but not ready to use after %s", snapshotPatience),
				"repeat the command to wait longer")
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return resp, context.Cause(ctx)
		}
	}
}

func groupVerbs() []verb {
	var workload string
	var detach bool
	return []verb{
		{
			use: "create NAME [VOLUME...]", short: "Take snapshots of several volumes as of one moment",
			long: `Take snapshots of several volumes of one driver as of one moment: what a program has written to
one of them before it wrote to another one is in the snapshots too. Repeating it gives the same
snapshots. It waits until they can be used.`,
			example: "before-the-upgrade -workload db", parameters: true,
			flags: func(f *pflag.FlagSet) {
				f.StringVar(&workload, "workload", "", "all volumes of this workload's `ID`")
				detachFlag(f, &detach)
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
				resp, err := untilReady(ctx, c, detach, func() (*hostv1.CreateGroupSnapshotResponse, prepared, error) {
					resp, err := c.Volumes.CreateGroupSnapshot(ctx, &hostv1.CreateGroupSnapshotRequest{
						Namespace: c.inNamespace(), VolumeIds: volumes, Name: c.args[0],
						Parameters: c.parameters, Secrets: c.secrets,
					})
					taken := resp.GetGroup()
					return resp, taken, err
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
