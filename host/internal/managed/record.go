package managed

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/pannier/pannier/host/internal/system/process"
)

// Record is what the next host must know of a program and its processes. Its owner writes it as JSON, as a part of
// a record of its own, whenever Set.Save is called: the intent before the fork, the process after it, the address
// when the process is up, and which process serves before callers move to it.
type Record struct {
	Generation uint64 `json:"generation"`        // number of starts, over all hosts
	Serving    uint64 `json:"serving,omitempty"` // the number of the run that callers use; 0: none
	// Runs are the processes that may exist: the serving one, one that is to take over, and those that finish
	// their calls.
	Runs     []*Run `json:"runs,omitempty"`
	Served   string `json:"served,omitempty"`    // the copy that serves, or served last
	LastGood string `json:"last_good,omitempty"` // the copy to go back to
	Pinned   string `json:"pinned,omitempty"`    // the only copy that may run; empty: any
	File     string `json:"file,omitempty"`      // what Served was copied from
	// Refused are copies that failed while another one worked, with the reason. They are not tried again.
	Refused map[string]string `json:"refused,omitempty"`
	Swaps   []Swap            `json:"swaps,omitempty"` // the newest last, at most maxSwaps
	// Kept are the copies that served and are kept, the one that served last at the end.
	Kept []Copy `json:"kept,omitempty"`
	// Left are ended processes that left something behind that serves mounts (Set.KeepMounts).
	Left []process.Ref `json:"left,omitempty"`
}

// ErrDamaged means that a record is not what was written.
var ErrDamaged = errors.New("it is damaged")

// SetAside renames the file of a damaged record, which is not read again, and returns its new path.
func SetAside(path string) (aside string, err error) {
	aside = path + ".damaged"
	return aside, os.Rename(path, aside)
}

// AddTokens adds the tokens of the record's processes to a set.
func (r *Record) AddTokens(to map[string]bool) {
	for _, run := range r.Runs {
		if run.Process != nil {
			to[run.Process.Token] = true
		}
	}
}

// Run is one process.
type Run struct {
	Number    uint64       `json:"number"`
	Process   *process.Ref `json:"process,omitempty"`
	StartedAt time.Time    `json:"started_at,omitzero"`
	SHA256    string       `json:"sha256,omitempty"` // of the copy that it runs from; empty: it runs from its file
	Settings  string       `json:"settings"`         // digest of how it was started
	Dir       string       `json:"dir,omitempty"`    // is removed with it
	Address   string       `json:"address,omitempty"`
	Protocol  int          `json:"protocol,omitempty"` // the version of the wire that it speaks
	Kind      string       `json:"kind,omitempty"`
	Version   string       `json:"version,omitempty"`
	// TookOver is when it took over from another binary; zero if it did not.
	TookOver time.Time `json:"took_over,omitzero"`
	// Canary is the percentage of the calls that it gets beside the one that serves; 0: it is no canary.
	Canary int `json:"canary,omitempty"`
	// PinnedBefore is the copy to which the program was pinned before this one was promoted, and is again if this one
	// fails while on probation; empty: none.
	PinnedBefore string `json:"pinned_before,omitempty"`

	proc *process.Process // nil: this host has not found or started it
}

// Copy is a copy that served.
type Copy struct {
	SHA256  string    `json:"sha256"`
	Version string    `json:"version,omitempty"`
	From    time.Time `json:"from,omitzero"`  // when it began to serve, the last time
	Until   time.Time `json:"until,omitzero"` // when another copy took over; zero: none has
}

// Swap is one change, or attempted change, of the process that callers use.
type Swap struct {
	At time.Time `json:"at"`
	// From and To are the two generations; To has no number if it never ran.
	From Side `json:"from"`
	To   Side `json:"to"`
	// Took is the time from the choice of the binary until callers used the new process, or it was refused; 0: it is not
	// known.
	Took time.Duration `json:"took,omitempty"`
	// Overlap is true if the new process was brought up beside the old one, which served meanwhile; else calls waited.
	Overlap bool `json:"overlap,omitempty"`
	// Carried is how many calls and streams the old process still had to finish.
	Carried int `json:"carried,omitempty"`
	// Rollback is true if the swap went back to the copy that had served before, since the newer one is refused.
	Rollback bool `json:"rollback,omitempty"`
	// Restart is true if it is a new process of the same binary, which an operator asked for.
	Restart bool `json:"restart,omitempty"`
	// Canary is the percentage of the calls that To had as a canary; 0: it was none.
	Canary int `json:"canary,omitempty"`
	// Why explains why it went back.
	Why string `json:"why,omitempty"`
	// Error explains why callers kept the old process; empty if they moved.
	Error string `json:"error,omitempty"`
}

// Side is one end of a swap.
type Side struct {
	Generation uint64 `json:"generation,omitempty"`
	Version    string `json:"version,omitempty"`
	SHA256     string `json:"sha256"`
	// Calls is how many calls the process had answered under this host until the swap, and FailedCalls how many of them
	// failed. Beside a canary only those since the canary began are counted.
	Calls       int `json:"calls,omitempty"`
	FailedCalls int `json:"failed_calls,omitempty"`
}

// maxSwaps is how many swaps are recorded.
const maxSwaps = 20

// Current returns the run that callers use, or nil.
func (r *Record) Current() *Run {
	n := slices.IndexFunc(r.Runs, func(run *Run) bool { return run.Number == r.Serving })
	if n < 0 {
		return nil
	}
	return r.Runs[n]
}

// newRun adds a run.
func (r *Record) newRun(sha string) *Run {
	r.Generation++
	run := &Run{Number: r.Generation, SHA256: sha, StartedAt: time.Now()}
	r.Runs = append(r.Runs, run)
	return run
}

// Serve marks a run as the one that serves.
func (r *Record) Serve(run *Run) {
	r.Serving = run.Number
	if run.SHA256 == "" || r.Served == run.SHA256 {
		return
	}
	if r.Served != "" {
		r.LastGood = r.Served
	}
	r.Served = run.SHA256
	now := time.Now().UTC()
	r.Kept = slices.Clone(r.Kept) // a failed swap goes back to the old ones
	if n := len(r.Kept) - 1; n >= 0 && r.Kept[n].Until.IsZero() {
		r.Kept[n].Until = now
	}
	r.Kept = slices.DeleteFunc(r.Kept, func(k Copy) bool { return k.SHA256 == run.SHA256 })
	r.Kept = append(r.Kept, Copy{SHA256: run.SHA256, Version: run.Version, From: now})
}

// Keeps reports whether a copy that served is kept.
func (r *Record) Keeps(sha string) bool {
	return slices.ContainsFunc(r.Kept, func(k Copy) bool { return k.SHA256 == sha })
}

// KeepNewest drops all but n of the kept copies, those that served longest ago first; never the one that serves, the
// one before it, nor the pinned one.
func (r *Record) KeepNewest(n int) {
	excess := len(r.Kept) - n
	r.Kept = slices.DeleteFunc(slices.Clone(r.Kept), func(k Copy) bool {
		if excess <= 0 || k.SHA256 == r.Served || k.SHA256 == r.LastGood || k.SHA256 == r.Pinned {
			return false
		}
		excess--
		return true
	})
}

// MayServe reports whether a copy has served, or may have to.
func (r *Record) MayServe(sha string) bool { return sha == r.Pinned || r.Keeps(sha) }

// Needs adds the copies that must not be removed.
func (r *Record) Needs(keep map[string]bool) {
	keep[r.Served], keep[r.LastGood], keep[r.Pinned] = true, true, true
	for _, k := range r.Kept {
		keep[k.SHA256] = true
	}
	for _, run := range r.Runs {
		keep[run.SHA256] = true
	}
}

// VersionOf returns the version of a copy; empty: it is not known.
func (r *Record) VersionOf(sha string) (version string) {
	for _, s := range r.Swaps {
		for _, side := range []Side{s.From, s.To} {
			if side.SHA256 == sha && side.Version != "" {
				version = side.Version
			}
		}
	}
	for _, k := range r.Kept {
		if k.SHA256 == sha && k.Version != "" {
			version = k.Version
		}
	}
	for _, run := range r.Runs {
		if run.SHA256 == sha && run.Version != "" {
			version = run.Version
		}
	}
	return version
}

// Refuse records that a copy must not be tried again.
func (r *Record) Refuse(sha, why string) {
	r.Refused = maps.Clone(r.Refused) // the caller may go back to the old ones
	if r.Refused == nil {
		r.Refused = map[string]string{}
	}
	r.Refused[sha] = why
}

// Swapped records a swap.
func (r *Record) Swapped(s Swap) {
	r.Swaps = append(slices.Clone(r.Swaps), s) // a status may have the old ones
	r.Swaps = slices.Delete(r.Swaps, 0, max(0, len(r.Swaps)-maxSwaps))
}

// forget removes a run whose process is gone.
func (r *Record) forget(run *Run) {
	r.Runs = slices.DeleteFunc(r.Runs, func(other *Run) bool { return other == run })
	if r.Serving == run.Number {
		r.Serving = 0
	}
}

// readRecord reads a record that is alone in a file. A file that does not exist is an empty record.
func readRecord(path string, r *Record) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(data, r)
	}
	return err
}
