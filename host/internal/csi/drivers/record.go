package drivers

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/internal/atomicfile"
)

// record is what must outlive the host: <data_dir>/csi/<id>/driver.json.
type record struct {
	Version int  `json:"version"`
	Spec    Spec `json:"spec"`
	// Launch is written before a process is started (an intent) and after: a host that died in
	// between finds the process by the intent's token.
	Launch *launch `json:"launch,omitempty"`
	// Left are earlier processes of the driver of which something is left, such as children that serve mounts. It is
	// ended when the driver is not in use any more.
	Left []process.Ref `json:"left,omitempty"`
}

// runningAs returns a new spec with the settings of the process that runs, and the names of those that differ.
func (r record) runningAs(spec Spec) (effective Spec, changed []string) {
	differs := func(name string, is bool) {
		if is {
			changed = append(changed, name)
		}
	}
	was := r.Spec
	differs("command", !slices.Equal(was.Command, spec.Command))
	differs("user", was.User != spec.User)
	differs("endpoint", was.Endpoint != spec.Endpoint)
	differs("checksum", was.Checksum != spec.Checksum)
	differs("limits", was.Limits != spec.Limits)
	spec.Command, spec.User, spec.Endpoint, spec.Checksum, spec.Limits = was.Command, was.User, was.Endpoint, was.Checksum,
		was.Limits
	return spec, changed
}

// launch is one start of the driver's process.
type launch struct {
	Runs    string      `json:"runs"` // digest of what was started: see runs
	Process process.Ref `json:"process"`
}

const recordVersion = 1

// runs is a digest of how the process is run. A process with another digest cannot serve the spec.
func runs(s Spec) string {
	how := []any{s.Command, s.User, s.Endpoint}
	if s.Checksum != "" || s.Limits != (process.Limits{}) { // earlier hosts had neither, and computed the same digest
		how = append(how, s.Checksum, s.Limits)
	}
	if len(s.Env) > 0 {
		how = append(how, s.Env)
	}
	text, err := json.Marshal(how)
	if err != nil {
		panic(err) // strings and numbers only
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

func recordPath(dataDir, id string) string { return filepath.Join(dir(dataDir, id), "driver.json") }

func logPath(dataDir, id string) string { return filepath.Join(dir(dataDir, id), "driver.log") }

// save makes the driver's folder (0700) and replaces its record atomically.
func (r record) save(dataDir string) error {
	if err := r.write(dataDir); err != nil {
		return fmt.Errorf("record driver %q: %w", r.Spec.ID, err)
	}
	return nil
}

func (r record) write(dataDir string) error {
	r.Version = recordVersion
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	folder := dir(dataDir, r.Spec.ID)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	return atomicfile.WriteFile(recordPath(dataDir, r.Spec.ID), append(text, '\n'))
}

// forget removes the driver's record and log, and its folder if nothing else is in it.
func forget(dataDir, id string) error {
	for _, path := range []string{recordPath(dataDir, id), logPath(dataDir, id), logPath(dataDir, id) + ".offset"} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("forget driver %q: %w", id, err)
		}
	}
	folder := dir(dataDir, id)
	if err := os.Remove(folder); err == nil || errors.Is(err, fs.ErrNotExist) {
		return atomicfile.SyncDir(filepath.Dir(folder))
	}
	return atomicfile.SyncDir(folder)
}

// loadRecords reads the records of all drivers, by id.
func loadRecords(dataDir string) (map[string]record, error) {
	entries, err := os.ReadDir(filepath.Join(dataDir, "csi"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for the drivers' records: %w", err)
	}
	records := map[string]record{}
	for _, e := range entries {
		if claim.CheckID(e.Name()) != nil || !e.IsDir() {
			continue
		}
		r, err := loadRecord(recordPath(dataDir, e.Name()), e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		records[r.Spec.ID] = r
	}
	return records, nil
}

func loadRecord(path, id string) (record, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return record{}, err
	}
	var r record
	err = json.Unmarshal(text, &r)
	if err == nil && (r.Version != recordVersion || r.Spec.ID != id) {
		err = fmt.Errorf("it has version %d and id %q", r.Version, r.Spec.ID)
	}
	if err != nil {
		return record{}, fmt.Errorf(
			"the record %s of driver %q cannot be used: %w: stop the driver's process and remove the file", path, id, err)
	}
	return r, nil
}
