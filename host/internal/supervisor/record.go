package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pannier/pannier/host/internal/durable"
	"github.com/pannier/pannier/host/internal/process"
)

// record is what the next host must know of a plugin. It is written before
// anything depends on it: the intent before the fork, the process after it, the
// address when the plugin has answered.
type record struct {
	Format     int          `json:"format"`
	Name       string       `json:"name"`
	Generation uint64       `json:"generation"` // counts starts, over all hosts
	Process    *process.Ref `json:"process,omitempty"`
	StartedAt  time.Time    `json:"started_at,omitzero"`
	SHA256     string       `json:"sha256,omitempty"`
	LastGood   string       `json:"last_good,omitempty"` // the copy that came up before this one
	Launch     string       `json:"launch,omitempty"`    // digest of how it was started
	RunDir     string       `json:"run_dir,omitempty"`   // holds the socket
	Address    string       `json:"address,omitempty"`   // the socket; empty until the handshake
	Wire       int          `json:"wire,omitempty"`      // the version that the handshake chose
	Kind       string       `json:"kind,omitempty"`
	Version    string       `json:"version,omitempty"`
}

const recordFormat = 1

func recordPath(dir, name string) string { return filepath.Join(dir, name+".json") }

// loadRecord gives the zero record where there is none.
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
		return rec, fmt.Errorf("the record of plugin %q has format %d and name %q: was it written by a newer host?", name, rec.Format, rec.Name)
	}
	return rec, nil
}

func (r record) save(dir string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the record of plugin %q: %w", r.Name, err)
	}
	if err := durable.WriteFile(recordPath(dir, r.Name), append(data, '\n')); err != nil {
		return fmt.Errorf("write the record of plugin %q: %w", r.Name, err)
	}
	return nil
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
