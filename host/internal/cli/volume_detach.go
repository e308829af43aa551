package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pannier/pannier/cluster/claim"
	escape "github.com/pannier/pannier/internal/printable"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *App) volumeDetach() *cobra.Command {
	var force bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "detach ID NODE", Short: "Release every claim of a volume on a node",
		Long: `Release every claim of a volume on a node, and show what became of each. While it waits it
says for what. The exit code is 1 when a claim is left, or after -timeout; the release
goes on then. -force frees the claims of a node that you know is down.`,
		Example: "pannier volume detach -timeout 30s data web-1",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			if timeout < 0 {
				return Usage("-timeout: not less than 0")
			}
			resp, err := a.detach(ctx, client, &hostv1.DetachVolumeRequest{
				Namespace: a.namespaceOr(claim.DefaultNamespace), Id: args[0], Node: args[1], Force: force,
			}, timeout)
			err = a.Print(resp, err, func() { a.showDetached(args[0], args[1], resp.GetClaims()) })
			for _, c := range resp.GetClaims() {
				if err == nil && !c.GetReleased() {
					return Hinted(errors.New("not every claim is released"),
						"the rest is retried automatically; -force frees the claims of a node that is down for certain")
				}
			}
			return err
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "free the claims of a node that you know is down; your name is recorded")
	cmd.Flags().DurationVar(&timeout, "timeout", 0,
		"wait no longer than this `duration`, such as 30s; 0: until it is released")
	return cmd
}

// detachInterval is the pause between two looks at what a detach waits for.
const detachInterval = 500 * time.Millisecond

// detach makes the call, and says what it waits for until it is answered or timeout has passed; 0: none.
func (a *App) detach(ctx context.Context, client *api.Client, req *hostv1.DetachVolumeRequest,
	timeout time.Duration,
) (*hostv1.DetachVolumeResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		resp *hostv1.DetachVolumeResponse
		err  error
	}
	answered := make(chan answer, 1)
	go func() {
		resp, err := client.Volumes.DetachVolume(ctx, req)
		answered <- answer{resp, err}
	}()
	var late <-chan time.Time
	if timeout > 0 {
		late = time.After(timeout)
	}
	tick := time.NewTicker(detachInterval)
	defer tick.Stop()
	for said := ""; ; {
		select {
		case got := <-answered:
			if got.err != nil {
				return nil, got.err
			}
			return got.resp, nil
		case <-tick.C:
			if text := a.detaching(ctx, client, req); text != "" && text != said {
				a.Note("%s", text)
				said = text
			}
		case <-late:
			return nil, Hinted(fmt.Errorf("volume %q is not released on node %q within %s; the release continues", req.GetId(),
				req.GetNode(), timeout), "pannier volume explain %s", escape.Argument(req.GetId())+" says what it waits for")
		}
	}
}

// detaching says what the claims of a volume on a node wait for; empty: nothing, or it is not known.
func (a *App) detaching(ctx context.Context, client *api.Client, req *hostv1.DetachVolumeRequest) (text string) {
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
			text += fmt.Sprintf(" (%s: %s)", c.GetNext(), c.GetCommand())
		}
	}
	return text
}

func (a *App) showDetached(volume, node string, claims []*hostv1.DetachedClaim) {
	t := NewTable("WORKLOAD", "MODE", "STATE BEFORE", "RELEASED", "MESSAGE")
	for _, c := range claims {
		released := Cell{"yes", Green}
		if !c.GetReleased() {
			released = Cell{"no", Red}
		}
		t.Row(c.GetClaim().GetWorkload(), c.GetClaim().GetMode(), c.GetClaim().GetState(), released, c.GetMessage())
	}
	a.List(t, "volume %q has no claim on node %q: nothing to release", volume, node)
}
