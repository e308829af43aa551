package volumes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/pannier/pannier/internal/procfs"
)

// record is a volume that was created through this plugin on this host.
type record struct {
	Namespace string    `json:"namespace"`
	ReadOnly  bool      `json:"read_only,omitempty"`
	Delete    bool      `json:"delete,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	// Boot is the kernel's boot that Mounts are of: after another one none counts.
	Boot   string            `json:"boot,omitempty"`
	Mounts map[string]*mount `json:"mounts,omitempty"` // by the id of Docker's Mount
	// KeptUntil is until when the workload is kept for the engine's next try, after a Mount that failed.
	KeptUntil time.Time `json:"kept_until,omitzero"`
	// Releaser is the process that is about to stop the workload; nobody may start it meanwhile.
	Releaser *process `json:"releaser,omitempty"`
}

// mount counts the Mounts with one id that no Unmount has ended: `docker cp` repeats the id of its container.
type mount struct {
	Count int       `json:"n"`
	At    time.Time `json:"at"` // of the last one
	// Seen is true if a holder was found since, so that its absence means its end.
	Seen bool `json:"seen,omitempty"`
	// Engine has made the last one; nil: it is not known. Without it, a container that has not started does not.
	Engine *process `json:"engine,omitempty"`
}

// process is one of this plugin's, or of an engine.
type process struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"start_time"` // tells it from a later one with its PID
}

func processOf(pid int) (process, error) {
	st, err := procfs.ReadStat(procfs.Dir(pid))
	return process{pid, st.StartTime}, err
}

func (p process) lives() bool {
	st, err := procfs.ReadStat(procfs.Dir(p.PID))
	return err == nil && st.StartTime == p.StartTime && !st.Ended()
}

func (r *record) used() bool { return len(r.Mounts) > 0 }

// add counts a Mount of an engine's process.
func (r *record) add(id string, now time.Time, by *process) {
	if r.Mounts == nil {
		r.Mounts = map[string]*mount{}
	}
	m := r.Mounts[id]
	if m == nil {
		m = &mount{}
		r.Mounts[id] = m
	}
	m.Count++
	m.At, m.Seen, m.Engine = now, false, by
}

// remove ends one Mount. One that does not count any more is none.
func (r *record) remove(id string) {
	m := r.Mounts[id]
	if m == nil {
		return
	}
	if m.Count--; m.Count <= 0 {
		delete(r.Mounts, id)
	}
}

// unseenGrace is how long a Mount counts although nobody has its mount yet: its container may wait for other volumes,
// each for as long as a Mount may take.
const unseenGrace = 5 * time.Minute

// compare adjusts the Mounts to the number of holders that were looked for at a time.
func (r *record) compare(holders int, looked time.Time) {
	for id, m := range r.Mounts {
		switch {
		case !m.At.Before(looked): // it may have come after the look
		case holders >= len(r.Mounts):
			m.Seen = true
		case holders == 0 && (m.Seen || m.Engine != nil && !m.Engine.lives() || looked.Sub(m.At) > unseenGrace):
			delete(r.Mounts, id)
		}
	}
}

// keyValues are the host's for this plugin (sdk.State).
type keyValues interface {
	Get(ctx context.Context, key string) (value []byte, found bool, err error)
	Delete(ctx context.Context, key string) error
	List(ctx context.Context, prefix string) ([]string, error)
	CompareAndSwap(ctx context.Context, key string, expected, value []byte) (swapped bool, err error)
}

// store has the records. Two processes of the plugin share it during a swap.
type store struct {
	kv   keyValues
	boot string
}

// errNoVolume: the volume is not used on this host, or is forgotten.
var errNoVolume = errors.New("no such volume was created through this plugin on this host")

const (
	prefix = "volume/"
	// forgotten has the volumes that the ledger may have and this host does not know until they are created again.
	forgotten = "forgotten/"
)

func (s *store) get(ctx context.Context, name string) (r record, err error) {
	r, _, err = s.read(ctx, name)
	return r, err
}

func (s *store) read(ctx context.Context, name string) (r record, raw []byte, err error) {
	raw, found, err := s.kv.Get(ctx, prefix+name)
	switch {
	case err != nil:
		return r, nil, fmt.Errorf("read the state of volume %q: %w", name, err)
	case !found:
		return r, nil, fmt.Errorf("volume %q: %w", name, errNoVolume)
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, nil, fmt.Errorf("read the state of volume %q: %w", name, err)
	}
	if r.Boot != s.boot {
		r.Boot, r.Mounts, r.Releaser = s.boot, nil, nil
	}
	return r, raw, nil
}

// create stores a new record, or returns the one that is there.
func (s *store) create(ctx context.Context, name string, r record) (record, error) {
	r.Boot = s.boot
	raw, err := json.Marshal(r)
	if err != nil {
		return r, err
	}
	stored, err := s.kv.CompareAndSwap(ctx, prefix+name, nil, raw)
	if err == nil {
		err = s.kv.Delete(ctx, forgotten+name)
	}
	if err != nil || stored {
		return r, err
	}
	return s.get(ctx, name)
}

// update changes a record; an error of change leaves it as it is.
func (s *store) update(ctx context.Context, name string, change func(*record) error) (record, error) {
	for {
		r, raw, err := s.read(ctx, name)
		if err != nil {
			return r, err
		}
		if err := change(&r); err != nil {
			return r, err
		}
		next, err := json.Marshal(r)
		if err != nil || bytes.Equal(raw, next) {
			return r, err
		}
		swapped, err := s.kv.CompareAndSwap(ctx, prefix+name, raw, next)
		if err != nil {
			return r, fmt.Errorf("write the state of volume %q: %w", name, err)
		}
		if swapped {
			return r, nil
		}
	}
}

func (s *store) delete(ctx context.Context, name string) error { return s.kv.Delete(ctx, prefix+name) }

// forget deletes a record, and notes that the ledger's volume is not to be found.
func (s *store) forget(ctx context.Context, name string) error {
	if _, err := s.kv.CompareAndSwap(ctx, forgotten+name, nil, []byte("{}")); err != nil {
		return err
	}
	return s.delete(ctx, name)
}

// names lists the volumes with a prefix, sorted.
func (s *store) names(ctx context.Context, prefix string) ([]string, error) {
	keys, err := s.kv.List(ctx, prefix)
	for n, key := range keys {
		keys[n] = strings.TrimPrefix(key, prefix)
	}
	return keys, err
}

// bootID of the kernel (random(4)).
func bootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(raw)), err
}
