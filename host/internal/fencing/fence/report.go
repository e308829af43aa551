package fence

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/fencing/boottime"
	"github.com/pannier/pannier/internal/atomicfile"
	"github.com/pannier/pannier/internal/printable"
)

// Report is what a fence did at one deadline. The agent's next process gives it as the reason why the workloads failed.
type Report struct {
	// BootID identifies the boot that Deadline and Done refer to.
	BootID   string           `json:"boot_id"`
	Deadline boottime.Instant `json:"deadline"`
	Began    time.Time        `json:"began"`
	// Done is when no process used a volume and nothing showed one any more; zero: not yet.
	Done      boottime.Instant    `json:"done,omitempty"`
	DoneAt    time.Time           `json:"done_at,omitzero"`
	Workloads []claim.WorkloadRef `json:"workloads,omitempty"` // the workloads that lost a process or a mount
	Killed    []Killed            `json:"killed,omitempty"`
	Unmounted []string            `json:"unmounted,omitempty"` // guarded paths
	// Detached are mounts that could only be detached lazily: no process was seen to use them, and the kernel said that
	// they were busy. The processes that keep them busy may still write.
	Detached []string `json:"detached,omitempty"`
	// Left is what could not be done so far, and why.
	Left []string `json:"left,omitempty"`
}

// Killed is a process that was killed, and why.
type Killed struct {
	PID      int               `json:"pid"`
	Command  string            `json:"command"`
	Why      string            `json:"why"`
	Workload claim.WorkloadRef `json:"workload,omitzero"`
}

// Hit reports whether the fence took something from a workload that was started in a boot, at a time on the clock of
// the lease. The time of day is not compared: it may have been set in between.
func (r Report) Hit(ref claim.WorkloadRef, bootID string, started boottime.Instant) bool {
	return slices.Contains(r.Workloads, ref) && r.BootID == bootID && r.Deadline > started
}

// String describes the report in one line.
func (r Report) String() string {
	text := fmt.Sprintf(
		"the fence killed %s and unmounted %s of volumes because the node's lease was over",
		printable.Count(len(r.Killed), "process"), printable.Count(len(r.Unmounted), "path"))
	if len(r.Detached) > 0 {
		text += fmt.Sprintf(
			"; it detached %s lazily, busy for an unknown reason; whatever keeps them busy may still write: %v",
			printable.Count(len(r.Detached), "mount"), r.Detached)
	}
	if len(r.Left) > 0 {
		text += fmt.Sprintf("; it could not do everything: %v", r.Left)
	}
	return text
}

// maxReports bounds the file. The newest reports are kept.
const maxReports = 16

// Reports lists the fence's newest reports, the oldest first.
func Reports(dir string) ([]Report, error) {
	data, err := os.ReadFile(filepath.Join(dir, reportFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []Report
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Join(dir, reportFile), err)
	}
	return all, nil
}

// writeReport adds a report to the file, or replaces the earlier one of the same deadline.
func writeReport(dir string, r Report) error {
	all, err := Reports(dir)
	if err != nil {
		all = nil // a damaged file must not prevent a new report
	}
	all = slices.DeleteFunc(all, func(o Report) bool { return o.BootID == r.BootID && o.Began.Equal(r.Began) })
	all = append(all, r)
	if more := len(all) - maxReports; more > 0 {
		all = all[more:]
	}
	return atomicfile.WriteJSON(filepath.Join(dir, reportFile), all)
}

func (r *Report) workload(ref claim.WorkloadRef) {
	if ref != (claim.WorkloadRef{}) && !slices.Contains(r.Workloads, ref) {
		r.Workloads = append(r.Workloads, ref)
	}
}

func (r *Report) killed(k Killed) {
	r.workload(k.Workload)
	if !slices.ContainsFunc(r.Killed, func(o Killed) bool { return o.PID == k.PID }) {
		r.Killed = append(r.Killed, k)
	}
}

func (r *Report) unmounted(m Mount) {
	r.workload(m.Workload)
	if !slices.Contains(r.Unmounted, m.Path) {
		r.Unmounted = append(r.Unmounted, m.Path)
	}
}
