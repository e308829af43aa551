package volumesteps

import (
	"context"
	"fmt"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/workload/specs"
)

// Checked is what a start would do for one request.
type Checked struct {
	Request specs.VolumeRequest
	Driver  string
	Usage   mounts.Usage
}

// Check does for a workload's requests what Want does, and keeps nothing of it. A driver that is not healthy is not
// waited for. Requests with a problem are not in the result.
func (c *Claims) Check(ctx context.Context, w claim.WorkloadRef, requests []specs.VolumeRequest,
) (ok []Checked, problems []error) {
	set := NewSet(unstarted{w}, nil)
	set.check = true
	var want []claim.Claim
	for _, req := range requests {
		v := &Volume{Record: NewRecord(w, "", req), set: set, workload: w}
		err := func() error {
			if req.Ephemeral() {
				return c.prepareEphemeral(ctx, v)
			}
			wanted, err := c.prepare(ctx, v)
			if err == nil {
				want, err = merge(want, wanted)
			}
			return err
		}()
		if err != nil {
			problems = append(problems, fmt.Errorf("volume block %q: %w", req.Name, err))
			continue
		}
		ok = append(ok, Checked{Request: req, Driver: v.PluginID, Usage: v.Usage})
	}
	return ok, problems
}

// unstarted is a workload that is only checked: nobody else sees its records.
type unstarted struct{ ref claim.WorkloadRef }

func (u unstarted) Ref() claim.WorkloadRef { return u.ref }
func (u unstarted) Resumed() bool          { return false }
func (u unstarted) ForcedBy() string       { return "" }
func (u unstarted) LoadedByUnits() bool    { return false }
func (u unstarted) View(read func())       { read() }
func (u unstarted) Update(change func())   { change() }
func (u unstarted) Save(change func()) error {
	change()
	return nil
}
