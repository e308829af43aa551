package cli

import (
	"context"
	_ "embed" // for the spec that init writes
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *App) volumeCommand() *cobra.Command {
	return a.Noun("volume", "CSI volumes",
		&cobra.Command{
			Use: "init [FILE]", Short: "Write a volume spec to start from (volume.hcl; - is standard output)",
			RunE: a.Do(func(_ context.Context, args []string) error {
				return a.writeSpec("volume", volumeInit, "pannier volume create", args)
			}),
		},
		a.volumeValidate(), a.volumeCreate(), a.volumeRegister(), a.volumeStatus(), a.volumeList(),
		a.volumeExplain(), a.volumeExpand(), a.volumeModify(), a.snapshotCommand(), a.volumeDetach(), a.volumeDeregister(),
		a.volumeDelete())
}

//go:embed volume_init.hcl
var volumeInit string

// writeSpec writes a spec to start from to the file of the arguments, or else to one that is named for its noun. then
// is the command that takes it.
func (a *App) writeSpec(noun, text, then string, args []string) error {
	path := noun + ".hcl"
	if len(args) > 0 {
		path = args[0]
	}
	if path == "-" {
		a.write(text)
		return a.outErr
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return Hinted(Coded(ExitRefused, fmt.Errorf("%s already exists", path)), "name another file: pannier %s init FILE",
			noun)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	a.Note("wrote %s; edit it, then: %s %s", path, then, path)
	return nil
}

func (a *App) volumeValidate() *cobra.Command {
	return &cobra.Command{
		Use: "validate FILE", Short: "Check a volume spec, without an agent",
		Long: `Check a volume spec, without an agent: all that is wrong with it is reported with file and line.
The files that secrets_from names are read. FILE may be one of Nomad's specs; - is standard input.
pannier volume create -dry-run also asks the agent and the driver.`,
		Example: "pannier volume validate volume.hcl",
		RunE: a.Do(func(_ context.Context, args []string) error {
			spec, err := a.readVolume(args[0])
			if err != nil {
				return err
			}
			for key := range spec.GetSecrets() {
				spec.Secrets[key] = "[REDACTED]"
			}
			return a.Done(spec, nil, "volume %q of driver %q in namespace %q is valid",
				spec.GetId(), spec.GetPluginId(), spec.GetNamespace())
		}),
	}
}

func (a *App) volumeCreate() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use: "create FILE", Short: "Make a volume at its driver and register it",
		Long: `Make a volume at its driver and register it. FILE is a volume spec; - is standard
input. Repeating it gives the same volume. -dry-run makes nothing: the agent checks the
definition, and that a healthy controller of the driver can create such a volume and has room.`,
		Example: "pannier volume create volume.hcl\npannier volume create -dry-run volume.hcl",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			spec, err := a.readVolume(args[0])
			if err != nil {
				return err
			}
			if dryRun {
				return a.checkVolume(ctx, client, spec)
			}
			resp, err := client.Volumes.CreateVolume(ctx, &hostv1.CreateVolumeRequest{Spec: spec})
			return a.Print(resp, err, func() { a.madeVolume("is created", resp.GetVolume()) })
		}),
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "check whether it can be made, and make nothing")
	return cmd
}

func (a *App) checkVolume(ctx context.Context, client *api.Client, spec *hostv1.VolumeSpec) error {
	resp, err := client.Volumes.CheckVolume(ctx, &hostv1.CheckVolumeRequest{Spec: spec})
	if resp.GetExists() {
		return a.Done(resp, err, "volume %q exists with this definition: it would stay as it is", spec.GetId())
	}
	return a.Done(resp, err, "volume %q can be created: driver %q would make it as %q", spec.GetId(), spec.GetPluginId(),
		resp.GetDriverName())
}

func (a *App) volumeRegister() *cobra.Command {
	return &cobra.Command{
		Use: "register FILE", Short: "Register an existing volume, or change its definition",
		Long: `Register a volume that exists at its driver, or change its definition. The driver is asked to
validate it. FILE is a volume spec; - is standard input.`,
		Example: "pannier volume register volume.hcl",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			spec, err := a.readVolume(args[0])
			if err != nil {
				return err
			}
			if spec.GetExternalId() == "" {
				return config.Problems{{File: args[0], Text: "external_id: is required to register a volume; " +
					"pannier volume create makes one, pannier volume list -external -driver " + spec.GetPluginId() +
					" lists the driver's"}}
			}
			resp, err := client.Volumes.RegisterVolume(ctx, &hostv1.RegisterVolumeRequest{Spec: spec})
			return a.Print(resp, err, func() { a.madeVolume("is registered", resp.GetVolume()) })
		}),
	}
}

// readVolume reads a spec and fills in its namespace.
func (a *App) readVolume(path string) (*hostv1.VolumeSpec, error) {
	spec, err := config.ReadVolume(path)
	if err != nil {
		return nil, err
	}
	if spec.GetNamespace() == "" {
		spec.Namespace = a.namespaceOr(claim.DefaultNamespace)
	}
	return spec, nil
}

func (a *App) madeVolume(what string, v *hostv1.Volume) {
	text := fmt.Sprintf("volume %q %s: external id %s", v.GetSpec().GetId(), what, v.GetSpec().GetExternalId())
	if v.GetCapacity() > 0 {
		text += ", " + size(v.GetCapacity())
	}
	a.Say("%s", text)
}

func (a *App) volumeExpand() *cobra.Command {
	var lowest, highest string
	cmd := &cobra.Command{
		Use: "expand ID [SIZE]", Short: "Grow a volume, mounted or not",
		Long: `Grow a volume, mounted or not. SIZE, such as 10GiB, is the least capacity;
it is the same as -capacity-min.`,
		Example: "pannier volume expand data 20GiB",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			if len(args) == 2 {
				if lowest != "" {
					return Usage("SIZE and -capacity-min say the same; give one of them")
				}
				lowest = args[1]
			}
			req := &hostv1.ExpandVolumeRequest{Namespace: a.namespaceOr(claim.DefaultNamespace), Id: args[0]}
			var err error
			if req.CapacityMin, err = capacity("the size", lowest); err != nil {
				return err
			}
			if req.CapacityMax, err = capacity("-capacity-max", highest); err != nil {
				return err
			}
			if req.CapacityMin == 0 && req.CapacityMax == 0 {
				return Usage("a size is missing")
			}
			resp, err := client.Volumes.ExpandVolume(ctx, req)
			return a.Done(resp, err, "volume %q has %s", args[0], size(resp.GetVolume().GetCapacity()))
		}),
	}
	cmd.Flags().StringVar(&lowest, "capacity-min", "", "the least `size` it is to have")
	cmd.Flags().StringVar(&highest, "capacity-max", "", "the most `size` it may have")
	return cmd
}

func (a *App) volumeModify() *cobra.Command {
	var flags driverFlags
	cmd := &cobra.Command{
		Use: "modify ID -parameter KEY=VALUE", Short: "Change a volume's mutable parameters, mounted or not",
		Long: `Change parameters of a volume at its driver, mounted or not. Which of them can be changed is up to
the driver; those that are not given stay as they are.`,
		Example: "pannier volume modify data -parameter readAhead=1MiB",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			parameters, secrets, err := flags.read()
			if err != nil {
				return err
			}
			resp, err := client.Volumes.ModifyVolume(ctx, &hostv1.ModifyVolumeRequest{
				Namespace: a.namespaceOr(claim.DefaultNamespace), Id: args[0], Parameters: parameters, Secrets: secrets,
			})
			return a.Done(resp, err, "volume %q is modified: %s",
				args[0], joinMap(resp.GetVolume().GetMutableParameters()))
		}),
	}
	flags.add(cmd)
	require(cmd, "parameter")
	return cmd
}

func capacity(name, text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := config.ParseSize(text)
	if err != nil {
		return 0, Usage("%s: %w", name, err)
	}
	return n, nil
}

func (a *App) volumeDeregister() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "deregister ID", Short: "Forget a volume, but keep it at its driver",
		Long: `Forget a volume, but keep it at its driver. Refused while it has claims; -force says what it
leaves behind.`,
		Example: "pannier volume deregister data",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			resp, err := client.Volumes.DeregisterVolume(ctx, &hostv1.DeregisterVolumeRequest{
				Namespace: a.namespaceOr(claim.DefaultNamespace), Id: args[0], Force: force,
			})
			for _, c := range resp.GetLeftBehind() {
				a.Note("warning: left behind: %s claim of workload %q on node %q (%s); its mount and attachment may still exist",
					c.GetMode(), c.GetWorkload(), c.GetNode(), c.GetState())
			}
			return a.Done(resp, err, "volume %q is deregistered; it still exists at its driver", args[0])
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "deregister it even while it has claims, and say what is left behind")
	return cmd
}

func (a *App) volumeDelete() *cobra.Command {
	var secretFlags []string
	var yes bool
	cmd := &cobra.Command{
		Use: "delete ID", Short: "Delete a volume at its driver, with its data",
		Long: `Delete a volume at its driver, with its data, and forget it. Refused while it has claims. On a
terminal the command asks first, unless -yes is given.`,
		Example: "pannier volume delete data",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			secrets, err := readSecrets(secretFlags)
			if err != nil {
				return err
			}
			if err := a.confirm(yes, "delete volume %q with its data?", args[0]); err != nil {
				return err
			}
			resp, err := client.Volumes.DeleteVolume(ctx, &hostv1.DeleteVolumeRequest{
				Namespace: a.namespaceOr(claim.DefaultNamespace), Id: args[0], Secrets: secrets,
			})
			return a.Done(resp, err, "volume %q is deleted", args[0])
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	secretsFlag(cmd, &secretFlags)
	return cmd
}
