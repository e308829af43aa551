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

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/internal/atomicfile"
)

// record is what must outlive the host: driver.json in the folder of an instance.
type record struct {
	Version int  `json:"version"`
	Spec    Spec `json:"spec"`
	managed.Record
	// Program is the file that the copies are of (see programs.go), and Good the checksum of the one that worked last.
	Program string `json:"program,omitempty"`
	Good    string `json:"good,omitempty"`
}

// runsOtherwise reports whether there is a process that cannot serve the spec.
func (r record) runsOtherwise(spec Spec) bool {
	run := r.Current()
	return run != nil && run.Settings != runs(spec)
}

// runningAs returns a new spec with the settings of the process that runs, and the names of the settings that differ.
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

const recordVersion = 1

// runs is a digest of how the process is run. A process with another digest cannot serve the spec.
func runs(s Spec) string {
	text, err := json.Marshal([]any{s.Command, s.User, s.Endpoint, s.Checksum, s.Limits, s.Env})
	if err != nil {
		panic(err) // strings and numbers only
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

func recordPath(dataDir, key string) string { return filepath.Join(dir(dataDir, key), "driver.json") }

func logPath(dataDir, key string) string { return filepath.Join(dir(dataDir, key), "driver.log") }

// save makes the driver's folder (0700) and replaces its record atomically.
func (r record) save(dataDir string) error {
	if err := r.write(dataDir); err != nil {
		return fmt.Errorf("record driver %q: %w", r.Spec.key(), err)
	}
	return nil
}

func (r record) write(dataDir string) error {
	r.Version = recordVersion
	folder := dir(dataDir, r.Spec.key())
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	return atomicfile.WriteJSON(recordPath(dataDir, r.Spec.key()), r)
}

// forget removes the record and log of an instance, and its folder if nothing else is in it.
func forget(dataDir, key string) error {
	for _, path := range []string{recordPath(dataDir, key), logPath(dataDir, key), logPath(dataDir, key) + ".offset"} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("forget driver %q: %w", key, err)
		}
	}
	if err := os.RemoveAll(copiesDir(dataDir, key)); err != nil {
		return fmt.Errorf("forget driver %q: %w", key, err)
	}
	folder := dir(dataDir, key)
	if err := os.Remove(folder); err == nil || errors.Is(err, fs.ErrNotExist) {
		return atomicfile.SyncDir(filepath.Dir(folder))
	}
	return atomicfile.SyncDir(folder)
}

// loadRecords reads the records of all instances, by key. Damaged records are set aside, and their processes are ended,
// since what they knew is lost: also a driver that was registered.
func loadRecords(dataDir string, log hclog.Logger) (map[string]record, error) {
	entries, err := os.ReadDir(filepath.Join(dataDir, "csi"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for the drivers' records: %w", err)
	}
	records, tokens, damaged := map[string]record{}, map[string]bool{}, false
	for _, e := range entries {
		if claim.CheckID(e.Name()) != nil || !e.IsDir() {
			continue
		}
		for _, key := range []string{e.Name(), apart(e.Name())} {
			r, err := loadRecord(recordPath(dataDir, key), key)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if errors.Is(err, managed.ErrDamaged) {
				damaged = true
				aside, failed := managed.SetAside(recordPath(dataDir, key))
				log.Error("a driver's record is damaged: the driver starts anew; if it was registered and not configured, register it "+
					"again", "driver", key, "error", err, "kept", aside)
				if failed != nil {
					return nil, failed
				}
				continue
			}
			if err != nil {
				return nil, err
			}
			records[key] = r
			r.AddTokens(tokens)
		}
	}
	if damaged {
		log.Warn("processes of drivers that are in no record were ended",
			"pids", process.EndUnrecorded(filepath.Dir(copiesDir(dataDir, "any")), tokens))
	}
	return records, nil
}

func loadRecord(path, key string) (record, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return record{}, err
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return record{}, fmt.Errorf("the record %s: %w: %w", path, managed.ErrDamaged, err)
	}
	if r.Version != recordVersion || r.Spec.key() != key {
		return record{}, fmt.Errorf("the record %s of driver %q cannot be used: it has version %d and is of %q: stop the driver's "+
			"process and remove the file", path, key, r.Version, r.Spec.key())
	}
	return r, nil
}
