package hostservices

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/internal/errcode"
	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
)

// Errors of the state.
var (
	errNoKey    = errcode.NotFound.New("no such key")
	errBadEntry = errcode.InvalidArgument.New("invalid entry of the plugin's state")
	errTooLarge = errcode.ResourceExhausted.New("the plugin's state is full")
)

// entry is one value of a plugin's state.
type entry struct {
	Value []byte `json:"value"`
}

// states keeps the plugins' states in the journal, which loses the last seconds of writes with the power: a plugin is
// told so. A value stays below the journal's threshold for files of their own, which are not compacted.
type states struct {
	journal *journal.Journal
	limits  atomic.Pointer[map[string]int64] // by plugin; nil: all have the default
	told    func(plugin, message string)     // may be nil

	full sync.Map // the plugins whose state was full since the limits were read
}

// limit returns the bytes that a plugin's state may have.
func (s *states) limit(plugin string) int {
	if limits := s.limits.Load(); limits != nil && (*limits)[plugin] != 0 {
		return int((*limits)[plugin])
	}
	return wire.DefaultState
}

// refuse reports the first write of a plugin that is refused because its state is full.
func (s *states) refuse(plugin string, err error) error {
	if _, known := s.full.LoadOrStore(plugin, true); !known && s.told != nil {
		s.told(plugin, err.Error())
	}
	return err
}

// of is the bucket with a plugin's state.
func of(plugin string) journal.Bucket[entry] {
	return journal.Bucket[entry]("plugin-state/" + plugin)
}

func (s *states) get(plugin string, req *pluginv1.GetRequest) (*pluginv1.GetResponse, error) {
	var found *entry
	err := s.journal.View(func(tx *journal.Tx) (err error) {
		found, err = of(plugin).Get(tx, req.GetKey())
		return err
	})
	if err == nil && found == nil {
		err = fmt.Errorf("%w: %.*q", errNoKey, wire.MaxStateKey, req.GetKey())
	}
	if err != nil {
		return nil, err
	}
	return &pluginv1.GetResponse{Value: found.Value}, nil
}

func (s *states) put(plugin string, req *pluginv1.PutRequest) (*pluginv1.PutResponse, error) {
	err := s.update(plugin, req.GetKey(), req.GetValue(), func(*entry) bool { return true })
	return &pluginv1.PutResponse{}, err
}

func (s *states) compareAndSwap(plugin string, req *pluginv1.CompareAndSwapRequest) (
	res *pluginv1.CompareAndSwapResponse, err error,
) {
	res = &pluginv1.CompareAndSwapResponse{}
	err = s.update(plugin, req.GetKey(), req.GetValue(), func(now *entry) bool {
		res.Swapped = (now == nil) == (req.Expected == nil) && (now == nil || bytes.Equal(now.Value, req.Expected))
		return res.Swapped
	})
	return res, err
}

// update stores a value if the condition holds for the present one; nil: there is none.
func (s *states) update(plugin, key string, value []byte, condition func(now *entry) bool) error {
	if err := wire.CheckEntry(key, value); err != nil {
		return fmt.Errorf("%w: %w", errBadEntry, err)
	}
	var full error // not an error of the journal's
	err := s.journal.Update(func(tx *journal.Tx) error {
		var now *entry
		keys, size := 1, len(key)+len(value)
		err := of(plugin).Each(tx, func(k string, e *entry) error {
			if k == key {
				now = e
			} else {
				keys, size = keys+1, size+len(k)+len(e.Value)
			}
			return nil
		})
		if err != nil || !condition(now) {
			return err
		}
		if full = wire.CheckState(keys, size, s.limit(plugin)); full == nil {
			err = of(plugin).Put(tx, key, &entry{value})
		}
		return err
	})
	if err != nil || full == nil {
		return err
	}
	return s.refuse(plugin, fmt.Errorf("%w: %w", errTooLarge, full))
}

func (s *states) remove(plugin string, req *pluginv1.DeleteRequest) (*pluginv1.DeleteResponse, error) {
	err := s.journal.Update(func(tx *journal.Tx) error { return of(plugin).Delete(tx, req.GetKey()) })
	return &pluginv1.DeleteResponse{}, err
}

func (s *states) list(plugin string, req *pluginv1.ListRequest) (*pluginv1.ListResponse, error) {
	res := &pluginv1.ListResponse{}
	err := s.journal.View(func(tx *journal.Tx) error {
		return of(plugin).Each(tx, func(key string, _ *entry) error {
			if strings.HasPrefix(key, req.GetPrefix()) {
				res.Keys = append(res.Keys, key)
			}
			return nil
		})
	})
	return res, err
}

// forgetAtOnce bounds the deletions of one transaction, whose size the journal limits.
const forgetAtOnce = 100

// forget deletes a plugin's state.
func (s *states) forget(plugin string) error {
	all, err := s.list(plugin, &pluginv1.ListRequest{})
	for keys := all.GetKeys(); err == nil && len(keys) > 0; {
		some := keys[:min(len(keys), forgetAtOnce)]
		keys = keys[len(some):]
		err = s.journal.Update(func(tx *journal.Tx) error {
			for _, key := range some {
				if err := of(plugin).Delete(tx, key); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("forget the state of plugin %q: %w", plugin, err)
	}
	return nil
}
