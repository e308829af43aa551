package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	escape "github.com/pannier/pannier/internal/printable"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func detachVerb() verb {
	var force bool
	var timeout time.Duration
	return verb{
		use: "detach ID NODE", short: "Release every claim of a volume on a node", example: "-timeout 30s data web-1",
		long: `Release every claim of a volume on a node, and show what became of each. While it waits it
says for what. The exit code is 1 when a claim is left, or after -timeout; the release
goes on then. -force frees the claims of a node that you know is down.`,
		flags: func(f *pflag.FlagSet) {
			f.BoolVar(&force, "force", false, "free the claims of a node that you know is down; your name is recorded")
			f.DurationVar(&timeout, "timeout", 0, "wait no longer than this `duration`, such as 30s; 0: until it is released")
		},
		run: func(ctx context.Context, c *call) error {
			if timeout < 0 {
				return Usage("-timeout: not less than 0")
			}
			resp, err := detach(ctx, c, &hostv1.DetachVolumeRequest{
				Namespace: c.inNamespace(), Id: c.args[0], Node: c.args[1], Force: force,
			}, timeout)
			err = list(c.Printer, resp, err, resp.GetClaims(), columns[*hostv1.DetachedClaim]{
				[]string{"WORKLOAD", "MODE", "STATE BEFORE", "RELEASED", "MESSAGE"},
				func(t *Table, d *hostv1.DetachedClaim) {
					t.Row(d.GetClaim().GetWorkload(), d.GetClaim().GetMode(), d.GetClaim().GetState(),
						yesOr(d.GetReleased(), Red), d.GetMessage())
				},
				fmt.Sprintf("volume %q has no claim on node %q: nothing to release", c.args[0], c.args[1]),
			})
			for _, d := range resp.GetClaims() {
				if err == nil && !d.GetReleased() {
					return Hinted(errors.New("not every claim is released"),
						"the rest is retried automatically; -force frees the claims of a node that is down for certain")
				}
			}
			return err
		},
	}
}

// detachInterval is the pause between two looks at what a detach waits for.
const detachInterval = 500 * time.Millisecond

// detach makes the call, and says what it waits for until it is answered or timeout has passed; 0: none.
func detach(ctx context.Context, c *call, req *hostv1.DetachVolumeRequest,
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
		resp, err := c.Volumes.DetachVolume(ctx, req)
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
			if text := detaching(ctx, c.Client, req); text != "" && text != said {
				c.Note("%s", text)
				said = text
			}
		case <-late:
			return nil, Hinted(fmt.Errorf("volume %q is not released on node %q within %s; the release continues", req.GetId(),
				req.GetNode(), timeout), "pannier volume explain %s", escape.Argument(req.GetId())+" says what it waits for")
		}
	}
}

// detaching says what the claims of a volume on a node wait for; empty: nothing, or it is not known.
func detaching(ctx context.Context, client *api.Client, req *hostv1.DetachVolumeRequest) (text string) {
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
