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
)

// Report is what a fence did at one deadline. The next process of the agent fails the
// workloads with it.
type Report struct {
	// BootID is that of the machine's start on which Deadline and Done count.
	BootID   string           `json:"boot_id"`
	Deadline boottime.Instant `json:"deadline"`
	Began    time.Time        `json:"began"`
	// Done is when nothing was left that used or showed a volume; zero: not yet.
	Done      boottime.Instant    `json:"done,omitempty"`
	DoneAt    time.Time           `json:"done_at,omitzero"`
	Workloads []claim.WorkloadRef `json:"workloads,omitempty"` // that lost a process or a mount
	Killed    []Killed            `json:"killed,omitempty"`
	Unmounted []string            `json:"unmounted,omitempty"` // guarded paths
	// Detached are mounts that only went lazily: nobody was seen to use them, and the kernel
	// said that they were busy. What keeps them may go on to write.
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

// String tells it to people in one line.
func (r Report) String() string {
	text := fmt.Sprintf("the fence killed %d processes and unmounted %d volumes' paths, since the node's lease was over", len(r.Killed), len(r.Unmounted))
	if len(r.Detached) > 0 {
		text += fmt.Sprintf("; %d mounts were busy for reasons that it could not see, and were detached: what keeps them may still write: %v", len(r.Detached), r.Detached)
	}
	if len(r.Left) > 0 {
		text += fmt.Sprintf("; it could not do everything: %v", r.Left)
	}
	return text
}

// mostReports bounds the file: the newest are kept.
const mostReports = 16

// Reports are what the fence of a folder did and nobody has taken note of yet, the oldest first.
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

// writeReport puts a report into the file: it replaces the one of the same deadline and begin.
func writeReport(dir string, r Report) error {
	all, err := Reports(dir)
	if err != nil {
		all = nil // a file that cannot be read must not keep a new report out
	}
	all = slices.DeleteFunc(all, func(o Report) bool { return o.BootID == r.BootID && o.Began.Equal(r.Began) })
	all = append(all, r)
	if more := len(all) - mostReports; more > 0 {
		all = all[more:]
	}
	data, err := json.MarshalIndent(all, "", "\t")
	if err != nil {
		return err
	}
	return atomicfile.WriteFile(filepath.Join(dir, reportFile), data)
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
