package workload

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pannier/pannier/sdk/service"
)

// revision is how a workload that runs is told of a spec that says other things of its
// services. instance.mu guards all but wake.
type revision struct {
	asked    uint64 // counts the askers
	answered uint64 // the last of them whose services were registered, or could not be
	err      error  // of that
	wake     chan struct{}
}

// fixed is the spec without what may change while the workload runs.
func (s Spec) fixed() Spec {
	s.Canary = false
	s.Services = slices.Clone(s.Services)
	for n := range s.Services {
		v := &s.Services[n]
		v.Tags, v.CanaryTags, v.Meta, v.CanaryMeta = nil, nil, nil, nil
		v.Checks, v.Weights, v.EnableTagOverride = nil, nil, false
	}
	return s
}

// differences names the parts of two specs that are not the same and may not change
// while the workload runs.
func differences(was, is Spec) string {
	was, is = was.fixed(), is.fixed()
	var all []string
	for _, part := range []struct {
		name string
		a, b any
	}{
		{"volumes", was.Volumes, is.Volumes},
		{"exec", was.Exec, is.Exec},
		{"services (other than tags, meta, checks, weights and enable_tag_override)", was.Services, is.Services},
		{"ports", was.Ports, is.Ports},
		{"user", was.User, is.User},
		{"sidecars", was.Sidecars, is.Sidecars},
		{"devices", was.Devices, is.Devices},
		{"after", was.After, is.After},
		{"replaces", was.Replaces, is.Replaces},
	} {
		if !sameJSON(part.a, part.b) {
			all = append(all, part.name)
		}
	}
	return strings.Join(all, ", ")
}

// sameJSON compares as the journal would: an empty list and none are one there.
func sameJSON(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	empty := func(raw []byte) bool { return slices.Contains([]string{"null", "[]"}, string(raw)) }
	return errX == nil && errY == nil && (bytes.Equal(x, y) || empty(x) && empty(y))
}

// revise gives a workload that runs another spec and asks for its registration. It
// returns what awaits that.
func (m *Manager) revise(i *instance, spec Spec) (asked uint64, err error) {
	services, err := m.resolved(&spec, i.rec.Ports)
	if err != nil {
		return 0, fmt.Errorf("%w %q: %w", ErrInvalid, spec.ID, err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	was := i.rec.Spec
	swap := func() {
		i.rec.Spec, was = spec, i.rec.Spec
		for n, s := range i.services {
			s.Service, services[n] = services[n], s.Service
		}
	}
	swap()
	if err := i.write(m.journal); err != nil {
		spec = was
		swap()
		return 0, fmt.Errorf("note the changed spec of %s: %w", i, err)
	}
	return i.askRevision(), nil
}

// pending says whether Consul is still to be told of what the spec says. i.mu is held.
func (i *instance) pending() bool { return slices.ContainsFunc(i.services, (*svc).stale) }

func (s *svc) stale() bool { return s.Registered == nil || !sameService(*s.Registered, s.Service) }

func sameService(a, b service.Service) bool { return sameJSON(a, b) }

// askRevision wakes the workload's goroutine. i.mu is held.
func (i *instance) askRevision() uint64 {
	i.revision.asked++
	select {
	case i.revision.wake <- struct{}{}:
	default:
	}
	return i.revision.asked
}

// revised says whether an asker was answered, and how.
func (i *instance) revised(asked uint64) (bool, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.revision.answered < asked {
		return false, nil
	}
	return true, i.revision.err
}

// keepRegistered registers the services again whose spec has changed, when it is asked
// to, and again until it works.
func (r *run) keepRegistered(ctx context.Context) {
	pause := r.pause()
	for {
		var again <-chan time.Time
		if err := r.registerStale(ctx); err != nil {
			again = time.After(pause.NextBackOff())
		} else {
			pause.Reset()
		}
		select {
		case <-ctx.Done():
			return
		case <-r.revision.wake:
		case <-again:
		}
	}
}

// registerStale registers what is not as the spec says, and answers those who asked.
func (r *run) registerStale(ctx context.Context) error {
	r.instance.mu.Lock()
	asked := r.revision.asked
	stale := slices.DeleteFunc(slices.Clone(r.services), func(s *svc) bool { return !s.stale() })
	r.instance.mu.Unlock()
	register := steps[slices.IndexFunc(steps, func(s step) bool { return s.name == registerStep })]
	var sideBySide errgroup.Group
	for _, s := range stale {
		sideBySide.Go(func() error {
			err := r.do(ctx, register, s)
			if ctx.Err() == nil {
				r.say(s, registering, err)
			}
			return err
		})
	}
	err := sideBySide.Wait()
	if ctx.Err() == nil { // else it is on its way down
		_ = r.update(nil, func(*record) { r.revision.answered, r.revision.err = asked, err })
	}
	if err == nil && len(stale) > 0 {
		r.event("updated", "its services were registered as the changed spec says")
	}
	return err
}
