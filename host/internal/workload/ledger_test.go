package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/workload/volumesteps"
)

// ledger is the replicated state in a file, which outlives a host that is killed. It decides by the real rules, and
// checks the mount table when a node says that nothing is mounted any more.
type ledger struct {
	*hooks
	file   string
	layout mounts.Layout
	wrong  func(format string, args ...any) // an invariant was broken

	mu      sync.Mutex
	state   ledgerState
	keep    bool // claims are freed when the test says so, not at once
	changed chan struct{}
	again   func() error // asks once more for the claims that were asked for last
}

type ledgerState struct {
	Volumes   []claim.Volume
	Workloads []claim.Workload
	Claims    []claim.Claim
	Tokens    []claim.Token
	Index     uint64
}

func openLedger(file string, layout mounts.Layout, h *hooks, wrong func(string, ...any)) (*ledger, error) {
	l := &ledger{hooks: h, file: file, layout: layout, wrong: wrong, changed: make(chan struct{})}
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return nil, err
	}
	return l, json.Unmarshal(raw, &l.state)
}

// changes runs do and saves its changes. l.mu is held meanwhile.
func (l *ledger) change(do func(s *ledgerState) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.Index++
	if err := do(&l.state); err != nil {
		return err
	}
	for n := range l.state.Volumes {
		v := &l.state.Volumes[n]
		if !slices.ContainsFunc(l.state.Claims, func(c claim.Claim) bool { return c.Volume == v.VolumeRef }) {
			v.AccessMode, v.AttachmentMode = "", ""
		}
	}
	close(l.changed)
	l.changed = make(chan struct{})
	raw, err := json.Marshal(l.state)
	if err == nil {
		err = os.WriteFile(l.file+".new", raw, 0o600)
	}
	if err == nil {
		err = os.Rename(l.file+".new", l.file)
	}
	return err
}

func (l *ledger) add(v claim.Volume) error {
	return l.change(func(s *ledgerState) error {
		s.Volumes = slices.DeleteFunc(s.Volumes, func(o claim.Volume) bool { return o.VolumeRef == v.VolumeRef })
		s.Volumes = append(s.Volumes, v)
		return v.Validate()
	})
}

func (s *ledgerState) volume(ref claim.VolumeRef) (*claim.Volume, error) {
	n := slices.IndexFunc(s.Volumes, func(v claim.Volume) bool { return v.VolumeRef == ref })
	if n < 0 {
		return nil, fmt.Errorf("volume %q %w", ref, claim.ErrVolumeNotFound)
	}
	return &s.Volumes[n], nil
}

func (s *ledgerState) of(ref claim.WorkloadRef) (own []claim.Claim) {
	for _, c := range s.Claims {
		if c.Workload == ref {
			own = append(own, c)
		}
	}
	return own
}

func (l *ledger) claims() []claim.Claim {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.state.Claims)
}

func (l *ledger) Volume(_ context.Context, ref claim.VolumeRef) (claim.Volume, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, err := l.state.volume(ref)
	if err != nil {
		return claim.Volume{}, err
	}
	return *v, nil
}

func (l *ledger) StartWorkload(ctx context.Context, run claim.Run, want []claim.Claim,
	tokens []claim.Token,
) (got volumesteps.Started, err error) {
	start := func() error {
		return l.change(func(s *ledgerState) (err error) {
			if w := s.workload(run.Ref); w != nil && run.ID != "" && w.LastEndedRunID == run.ID {
				return fmt.Errorf("the run is over: %w", claim.ErrConflict)
			}
			got, err = s.start(run.Ref, run.Node, want, tokens)
			return err
		})
	}
	l.mu.Lock()
	l.again = start
	l.mu.Unlock()
	err = l.call(ctx, "claim", run.Ref.ID, start)
	return got, err
}

func (l *ledger) Workload(_ context.Context, ref claim.WorkloadRef) (claim.Workload, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.state.workload(ref); w != nil {
		return *w, nil
	}
	return claim.Workload{}, fmt.Errorf("workload %q: %w", ref, claim.ErrWorkloadNotFound)
}

func (s *ledgerState) workload(ref claim.WorkloadRef) *claim.Workload {
	n := slices.IndexFunc(s.Workloads, func(w claim.Workload) bool { return w.Ref == ref })
	if n < 0 {
		return nil
	}
	return &s.Workloads[n]
}

func (l *ledger) AwaitWorkload(ctx context.Context, run claim.Run, after []claim.WorkloadRef) error {
	ref, node := run.Ref, run.Node
	return l.call(ctx, "await", ref.ID, func() error {
		return l.change(func(s *ledgerState) error {
			w := s.workload(ref)
			if w == nil {
				s.Workloads = append(s.Workloads, claim.Workload{Ref: ref})
				w = s.workload(ref)
			}
			if w.Status == claim.Running || w.Status == claim.Waiting && w.Node != node {
				return claim.ErrConflict
			}
			w.Node, w.Status, w.After, w.CreateIndex = node, claim.Waiting, after, s.Index
			return nil
		})
	})
}

func (l *ledger) AwaitEnded(ctx context.Context, ref claim.WorkloadRef) error {
	return l.call(ctx, "others", ref.ID, func() error {
		return l.until(ctx, func(s *ledgerState) bool {
			w := s.workload(ref)
			return (w == nil || w.Status == claim.Ended) && len(s.of(ref)) == 0
		})
	})
}

// until waits until a condition on the state is true.
func (l *ledger) until(ctx context.Context, is func(s *ledgerState) bool) error {
	for {
		l.mu.Lock()
		changed, over := l.changed, is(&l.state)
		l.mu.Unlock()
		if over {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// start does what the cluster's state does for StartWorkload.
func (s *ledgerState) start(ref claim.WorkloadRef, node string, want []claim.Claim,
	tokens []claim.Token,
) (got volumesteps.Started, err error) {
	n := slices.IndexFunc(s.Workloads, func(w claim.Workload) bool { return w.Ref == ref })
	running := n >= 0 && s.Workloads[n].Status == claim.Running
	if running && s.Workloads[n].Node != node {
		return got, claim.ErrConflict
	}
	var fresh []claim.Claim
	for _, w := range want {
		v, err := s.volume(w.Volume)
		if err != nil {
			return got, err
		}
		var held []claim.Claim
		for _, c := range s.Claims {
			if c.Volume == w.Volume {
				held = append(held, c)
			}
		}
		granted, created, err := claim.Take(*v, held, w, time.Now())
		if err != nil {
			return got, err
		}
		if created {
			granted.Index = s.Index
			fresh = append(fresh, granted)
		}
		got.Claims, got.Volumes = append(got.Claims, granted), append(got.Volumes, *v)
	}
	if running && (len(fresh) > 0 || len(s.of(ref)) != len(want)) {
		return got, fmt.Errorf("workload %q runs already with other claims: %w", ref, claim.ErrConflict)
	}
	if err := s.noteTokens(ref, running, tokens); err != nil {
		return got, err
	}
	s.Claims = append(s.Claims, fresh...)
	for _, c := range fresh {
		v, _ := s.volume(c.Volume)
		v.AccessMode, v.AttachmentMode = c.AccessMode, c.AttachmentMode
	}
	if n < 0 {
		s.Workloads = append(s.Workloads, claim.Workload{Ref: ref})
		n = len(s.Workloads) - 1
	}
	if !running {
		s.Workloads[n].CreateIndex = s.Index
	}
	s.Workloads[n].Node, s.Workloads[n].Status = node, claim.Running
	got.Run = s.Workloads[n].CreateIndex
	return got, nil
}

// noteTokens records tokens: a workload that runs must have them all, one that starts must have new ones.
func (s *ledgerState) noteTokens(ref claim.WorkloadRef, running bool, tokens []claim.Token) error {
	for _, t := range tokens {
		if err := t.Validate(); err != nil {
			return err
		}
		if known := slices.ContainsFunc(s.Tokens, func(o claim.Token) bool { return o.ID == t.ID }); known != running {
			return fmt.Errorf("token %s of workload %q, which runs: %t, is known: %t: %w", t.ID, ref, running, known,
				claim.ErrConflict)
		}
	}
	if !running {
		s.Tokens = append(s.Tokens, tokens...)
	}
	return nil
}

func (l *ledger) EndWorkload(ctx context.Context, run claim.Run) error {
	ref := run.Ref
	return l.call(ctx, "end", ref.ID, func() error {
		return l.change(func(s *ledgerState) error {
			w := s.workload(ref)
			if w == nil {
				s.Workloads = append(s.Workloads, claim.Workload{Ref: ref, Node: run.Node, Status: claim.Ended})
				w = s.workload(ref)
			}
			w.LastEndedRunID = run.ID
			if w.Node != run.Node || run.Index != 0 && w.CreateIndex != run.Index {
				return nil
			}
			w.Status = claim.Ended
			for n := range s.Claims {
				if s.Claims[n].Workload == ref && s.Claims[n].State == claim.Taken {
					s.Claims[n].State = claim.Unpublishing
				}
			}
			return nil
		})
	})
}

func (l *ledger) NodeDetached(ctx context.Context, claims []claim.Claim) error {
	if len(claims) == 0 {
		return nil
	}
	ref := claims[0].Workload
	return l.call(ctx, "detached", ref.ID, func() error {
		if by := claims[0].ForcedBy; by != "" {
			l.note("detached " + ref.ID + ", forced by " + by)
		}
		err := l.change(func(s *ledgerState) error {
			for n := range s.Claims {
				c := &s.Claims[n]
				if meant(claims, *c) && c.State.Before(claim.NodeDetached) {
					l.checkDetached(s, c)
					c.State = claim.NodeDetached
				}
			}
			return nil
		})
		if err == nil && !l.keep {
			err = l.free(ref)
		}
		return err
	})
}

// meant reports whether an existing claim is one of those.
func meant(claims []claim.Claim, is claim.Claim) bool {
	return slices.ContainsFunc(claims, func(c claim.Claim) bool {
		return c.Workload == is.Workload && c.Volume == is.Volume && c.Node == is.Node &&
			(c.Index == 0 || c.Index == is.Index)
	})
}

// foreign is the source of a mount that belongs to no volume.
const foreign = "foreign"

// checkDetached checks that a claim is released only when nothing of its volume is mounted for the workload, and that
// its last user leaves no staging mount behind.
func (l *ledger) checkDetached(s *ledgerState, c *claim.Claim) {
	v, err := s.volume(c.Volume)
	if err != nil {
		l.wrong("detached %s: %v", c.Volume, err)
		return
	}
	if c.State != claim.Unpublishing {
		l.wrong("the claim of %q on %q was detached while it was %s", c.Workload, c.Volume, c.State)
	}
	folders := []string{l.layout.WorkloadVolume(v.PluginID, c.Workload, c.Volume)}
	if !slices.ContainsFunc(s.Claims,
		func(o claim.Claim) bool { return o.Volume == c.Volume && o.Workload != c.Workload }) {
		folders = append(folders, l.layout.StagingOf(v.PluginID, c.Volume))
	}
	for _, dir := range folders {
		there, err := mounts.Below(dir)
		there = slices.DeleteFunc(there, func(m mounts.Mount) bool { return m.Source == foreign })
		if err != nil || len(there) > 0 {
			l.wrong("the claim of %q on %q is released while %v is mounted (%v)", c.Workload, c.Volume, there, err)
		}
	}
}

// takeAway does what the leader does when a node sent no heartbeat for long: it removes the workload's claims. If
// another node is given, the workload runs there now.
func (l *ledger) takeAway(id, to string) error {
	return l.change(func(s *ledgerState) error {
		w, own := s.workload(ref(id)), s.of(ref(id))
		s.Claims = slices.DeleteFunc(s.Claims, func(c claim.Claim) bool { return c.Workload == ref(id) })
		w.Status = claim.Ended
		if to == "" {
			return nil
		}
		w.Status, w.Node, w.CreateIndex = claim.Running, to, s.Index
		for _, c := range own {
			c.Node, c.Index, c.State = to, s.Index, claim.Taken
			s.Claims = append(s.Claims, c)
		}
		return nil
	})
}

// free is the leader's part of a release: it removes the workload's claims that are detached.
func (l *ledger) free(ref claim.WorkloadRef) error {
	return l.change(func(s *ledgerState) error {
		s.Claims = slices.DeleteFunc(s.Claims,
			func(c claim.Claim) bool { return c.Workload == ref && c.State == claim.NodeDetached })
		return nil
	})
}

func (l *ledger) AwaitFreed(ctx context.Context, claims []claim.Claim) error {
	of := ""
	if len(claims) > 0 {
		of = claims[0].Workload.ID
	}
	return l.call(ctx, "freed", of, func() error {
		return l.until(ctx, func(s *ledgerState) bool {
			return !slices.ContainsFunc(s.Claims, func(c claim.Claim) bool { return meant(claims, c) })
		})
	})
}

func (l *ledger) ClaimsOf(_ context.Context, ref claim.WorkloadRef) ([]claim.Claim, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.of(ref), nil
}

func (l *ledger) OnNode(ctx context.Context, node string) (standing []claim.Workload, on []claim.Claim, err error) {
	if err := l.reach(ctx, "onnode:before", ""); err != nil {
		return nil, nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.state.Workloads {
		if w.Node == node && w.Status != claim.Ended {
			standing = append(standing, w)
		}
	}
	for _, c := range l.state.Claims {
		if c.Node == node {
			on = append(on, c)
		}
	}
	return standing, on, nil
}
