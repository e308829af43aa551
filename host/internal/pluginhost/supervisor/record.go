package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/internal/atomicfile"
)

// record is the information about a plugin for the next host.
type record struct {
	Format int    `json:"format"`
	Name   string `json:"name"`
	managed.Record
	// Identities are what the copies of this record said they are, by checksum (see identity.go).
	Identities map[string]string `json:"identities,omitempty"`
	// Settings are those with which the copies of this record served last, by checksum (see settings.go).
	Settings map[string]settings `json:"settings,omitempty"`
}

const recordFormat = 1

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
		return record{Format: recordFormat, Name: name}, fmt.Errorf("read the record of plugin %q: %w: %w", name, managed.ErrDamaged, err)
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

// is records what a copy says it is, and drops copies that are gone.
func (r *record) is(sha, identity string) {
	maps.DeleteFunc(r.Identities, func(old, _ string) bool { return !r.MayServe(old) })
	if r.Identities == nil {
		r.Identities = map[string]string{}
	}
	r.Identities[sha] = identity
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
