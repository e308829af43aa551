package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// danger is why a command may lose data, or give a volume to two writers. A person at a terminal is told whom it
// concerns and is asked; a program must pass -yes.
type danger struct {
	// when is the flag that makes it dangerous; nil: it always is.
	when *bool
	// risk is what may follow: a format of the arguments.
	risk string
	// concerns returns whom it concerns, one a line.
	concerns func(ctx context.Context, c *call) ([]string, error)
}

// addTo adds -yes to a dangerous command, and returns the check to make before its work.
func (d *danger) addTo(cmd *cobra.Command) work {
	yes := cmd.Flags().Bool("yes", false, "do not ask; needed where nobody sits at a terminal")
	return func(ctx context.Context, c *call) error {
		if *yes || d.when != nil && !*d.when {
			return nil
		}
		risk := fmt.Sprintf(d.risk, c.operands()...)
		if !canAsk() {
			return Usage("%s; nobody can be asked without a terminal: if that is what you want, add -yes", risk)
		}
		lines, err := c.concerned(ctx, d.concerns)
		if err != nil {
			c.Note("warning: it is not known whom this concerns: %s", message(err))
		}
		c.noteAll(lines)
		return c.confirm(false, "%s. Go on?", risk)
	}
}

// claimLines describes claims, one a line.
func claimLines(claims []*hostv1.Claim) (lines []string) {
	for _, one := range claims {
		lines = append(lines, fmt.Sprintf("workload %q on node %q has volume %q (%s, %s)", one.GetWorkload(), one.GetNode(),
			one.GetVolume(), one.GetMode(), one.GetState()))
	}
	return lines
}

// claimsOf returns the claims of the volume that the first argument names, on the node of the second if there is one.
func claimsOf(ctx context.Context, c *call) ([]string, error) {
	resp, err := c.Volumes.GetVolume(ctx, &hostv1.GetVolumeRequest{Namespace: c.inNamespace(), Id: c.args[0]})
	return claimLines(slices.DeleteFunc(resp.GetVolume().GetClaims(), func(one *hostv1.Claim) bool {
		return c.arg(1) != "" && one.GetNode() != c.arg(1)
	})), err
}

// claimsOfDriver returns the claims of a driver's volumes.
func claimsOfDriver(ctx context.Context, c *call) (lines []string, err error) {
	resp, err := c.Volumes.ListVolumes(ctx, &hostv1.ListVolumesRequest{Namespace: "*", PluginId: c.args[0]})
	for _, v := range resp.GetVolumes() {
		lines = append(lines, claimLines(v.GetClaims())...)
	}
	return lines, err
}

// workloadsOf returns the workloads of a node with their claims.
func workloadsOf(ctx context.Context, c *call) ([]string, error) {
	resp, err := c.Nodes.GetNode(ctx, &hostv1.GetNodeRequest{Name: c.args[0]})
	lines := claimLines(resp.GetClaims())
	for _, w := range resp.GetWorkloads() {
		if !slices.ContainsFunc(resp.GetClaims(), func(one *hostv1.Claim) bool {
			return one.GetWorkload() == w.GetId() && one.GetNamespace() == w.GetNamespace()
		}) {
			lines = append(lines, fmt.Sprintf("workload %q on node %q has no volume", w.GetId(), c.args[0]))
		}
	}
	return lines, err
}

// announce notes whom a command is about to stop. If that is not known, the command itself reports why.
func (c *call) announce(ctx context.Context, concerns func(context.Context, *call) ([]string, error)) {
	if lines, err := c.concerned(ctx, concerns); err == nil && len(lines) > 0 {
		c.Note("this stops:")
		c.noteAll(lines)
	}
}

// concernPatience bounds looking whom a command concerns: without a leader that is not known.
const concernPatience = 5 * time.Second

func (c *call) concerned(ctx context.Context, by func(context.Context, *call) ([]string, error)) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, concernPatience)
	defer cancel()
	return by(ctx, c)
}

func (c *call) noteAll(lines []string) {
	for _, line := range lines {
		c.Note("  %s", line)
	}
}
