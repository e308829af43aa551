package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/internal/atomicfile"
)

// record is the information about a plugin for the next host. It is written before anything depends on it:
// the intent before the fork, the process after it, the address when the plugin has answered, and which
// process serves before callers move to it.
type record struct {
	Format     int    `json:"format"`
	Name       string `json:"name"`
	Generation uint64 `json:"generation"`        // number of starts, over all hosts
	Serving    uint64 `json:"serving,omitempty"` // the number of the run that callers use; 0: none
	// Runs are the processes that may exist: the serving one, one that is to take over, and those that finish
	// their calls.
	Runs     []*runRecord `json:"runs,omitempty"`
	Served   string       `json:"served,omitempty"`    // the copy that serves, or served last
	LastGood string       `json:"last_good,omitempty"` // the copy that served before that
	Pinned   string       `json:"pinned,omitempty"`    // the only copy that may run; empty: any
	File     string       `json:"file,omitempty"`      // name of the file that Served was copied from
	// Identities are what the copies of this record said they are, by checksum (see identity.go).
	Identities map[string]string `json:"identities,omitempty"`
	// Settings are those with which the copies of this record served last, by checksum (see settings.go).
	Settings map[string]settings `json:"settings,omitempty"`
	// Refused are copies that failed while another one worked, with the reason. They are not tried again.
	Refused map[string]string `json:"refused,omitempty"`
	Swaps   []Swap            `json:"swaps,omitempty"` // the newest last, at most maxSwaps
	// Kept are the copies that served and are kept, the one that served last at the end.
	Kept []keptCopy `json:"kept,omitempty"`
}

// keptCopy is a copy that served.
type keptCopy struct {
	SHA256  string    `json:"sha256"`
	Version string    `json:"version,omitempty"`
	From    time.Time `json:"from,omitzero"`  // when it began to serve, the last time
	Until   time.Time `json:"until,omitzero"` // when another copy took over; zero: none has
}

// runRecord is one process of a plugin.
type runRecord struct {
	Number    uint64       `json:"number"`
	Process   *process.Ref `json:"process,omitempty"`
	StartedAt time.Time    `json:"started_at,omitzero"`
	SHA256    string       `json:"sha256"`
	Launch    string       `json:"launch"`            // digest of how it was started
	Config    string       `json:"config,omitempty"`  // digest of its config block; empty: it has none
	RunDir    string       `json:"run_dir,omitempty"` // holds the socket
	Address   string       `json:"address,omitempty"` // the socket; empty until the handshake
	Wire      int          `json:"wire,omitempty"`    // the wire version that the handshake chose
	Kind      string       `json:"kind,omitempty"`
	Version   string       `json:"version,omitempty"`
	// TookOver is when it took over from another binary; zero if it did not.
	TookOver time.Time `json:"took_over,omitzero"`
	// Canary is the percentage of the calls that it gets beside the one that serves; 0: it is no canary.
	Canary int `json:"canary,omitempty"`
	// PinnedBefore is the copy to which the plugin was pinned before this one was promoted, and is again if this one
	// fails while on probation; empty: none.
	PinnedBefore string `json:"pinned_before,omitempty"`
}

const recordFormat = 1

// maxSwaps is how many swaps of a plugin are recorded.
const maxSwaps = 20

func recordPath(dir, name string) string { return filepath.Join(dir, name+".json") }

// loadRecord returns the zero record if there is none.
func loadRecord(dir, name string) (record, error) {
	rec := record{Format: recordFormat, Name: name}
	data, err := os.ReadFile(recordPath(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return rec, nil
	}
	if err != nil {
		return rec, fmt.Errorf("read the record of plugin %q: %w", name, err)
	}
	if err := json.Unmarshal(data, &rec); err != nil {
		return rec, fmt.Errorf("read the record of plugin %q: %w", name, err)
	}
	if rec.Format != recordFormat || rec.Name != name {
		return rec, fmt.Errorf("the record of plugin %q has format %d and name %q: was it written by a newer host?", name,
			rec.Format, rec.Name)
	}
	return rec, nil
}

func (r *record) save(dir string) error {
	if err := atomicfile.WriteJSON(recordPath(dir, r.Name), r); err != nil {
		return fmt.Errorf("write the record of plugin %q: %w", r.Name, err)
	}
	return nil
}

// serving returns the run that callers use, or nil.
func (r *record) serving() *runRecord {
	n := slices.IndexFunc(r.Runs, func(run *runRecord) bool { return run.Number == r.Serving })
	if n < 0 {
		return nil
	}
	return r.Runs[n]
}

// serve marks a run as the one that serves.
func (r *record) serve(run *runRecord) {
	r.Serving = run.Number
	if r.Served == run.SHA256 {
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
	r.Kept = slices.DeleteFunc(r.Kept, func(k keptCopy) bool { return k.SHA256 == run.SHA256 })
	r.Kept = append(r.Kept, keptCopy{SHA256: run.SHA256, Version: run.Version, From: now})
}

func (r *record) keeps(sha string) bool {
	return slices.ContainsFunc(r.Kept, func(k keptCopy) bool { return k.SHA256 == sha })
}

// keepNewest drops all but n of the kept copies, those that served longest ago first; never the one that serves, the
// one before it, nor the pinned one.
func (r *record) keepNewest(n int) {
	excess := len(r.Kept) - n
	r.Kept = slices.DeleteFunc(slices.Clone(r.Kept), func(k keptCopy) bool {
		if excess <= 0 || k.SHA256 == r.Served || k.SHA256 == r.LastGood || k.SHA256 == r.Pinned {
			return false
		}
		excess--
		return true
	})
}

// versionOf returns the version of a copy; empty: it is not known.
func (r *record) versionOf(sha string) (version string) {
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

// servedFrom records the file that the serving copy was made of. An empty path does nothing.
func (r *record) servedFrom(path string) {
	if path != "" {
		r.File = filepath.Base(path)
	}
}

// is records what a copy says it is, and drops copies that are gone.
func (r *record) is(sha, identity string) {
	maps.DeleteFunc(r.Identities, func(old, _ string) bool { return !r.mayServe(old) })
	if r.Identities == nil {
		r.Identities = map[string]string{}
	}
	r.Identities[sha] = identity
}

// mayServe says whether a copy has served, or may have to.
func (r *record) mayServe(sha string) bool {
	return sha == r.Pinned || r.keeps(sha)
}

// forget removes a run whose process is gone.
func (r *record) forget(run *runRecord) {
	r.Runs = slices.DeleteFunc(r.Runs, func(other *runRecord) bool { return other == run })
	if r.Serving == run.Number {
		r.Serving = 0
	}
}

// refuse records that a copy must not be tried again.
func (r *record) refuse(sha, why string) {
	if r.Refused == nil {
		r.Refused = map[string]string{}
	}
	r.Refused[sha] = why
}

// swapped records a swap.
func (r *record) swapped(s Swap) {
	r.Swaps = append(r.Swaps, s)
	r.Swaps = slices.Delete(r.Swaps, 0, max(0, len(r.Swaps)-maxSwaps))
}

// recordedNames lists the plugins that have a record.
func recordedNames(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".json"))
	}
	return names, nil
}
