package services

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/plugins/internal/consul"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
)

// patience is how long the catalog may differ from the agent before it is corrected. An agent normally updates it
// within milliseconds.
const patience = 500 * time.Millisecond

// Sync implements registration.Registration. It fails with Unavailable if the catalog could not be made to match
// the instances.
func (s *Services) Sync(ctx context.Context, c service.Consul, req registration.SyncRequest) (uint64,
	[]registration.Change, error,
) {
	p := &pass{
		services: s, owner: req.Owner, began: s.now(),
		wanted: map[string]*wanted{}, done: map[string]registration.Change{},
	}
	var err error
	if p.agent, err = s.agent(c); err != nil {
		return 0, nil, err
	}
	accessor, err := s.accessor(ctx, p.agent)
	if err != nil {
		return 0, nil, err
	}
	for _, i := range req.Instances {
		w, err := want(i)
		if err != nil {
			return 0, nil, err
		}
		w.markToken(accessor)
		for id := range w.parts() {
			p.wanted[id] = w
		}
	}
	index, err := p.run(ctx, req.Index, req.Wait)
	if err == nil {
		err = p.repairIntentions(ctx, req.Instances)
	}
	if err != nil {
		return 0, nil, err
	}
	return index, p.changes(), nil
}

// pass is one call of Sync.
type pass struct {
	services *Services
	agent    *agent
	owner    registration.Owner
	began    uint64             // Services.now when it came
	wanted   map[string]*wanted // by the ids of their parts
	node     string
	done     map[string]registration.Change // by id
}

// differences lists what is wrong in a view.
type differences struct {
	drifted  map[string]string // reasons by the ids of parts
	leftover []string          // ids of the owner's services that are not wanted
}

func (d *differences) none() bool { return len(d.drifted)+len(d.leftover) == 0 }

func (d *differences) count() int { return len(d.drifted) + len(d.leftover) }

// run waits for a change, compares and repairs. index is the index of a catalog that matched.
func (p *pass) run(ctx context.Context, index uint64, wait time.Duration) (uint64, error) {
	var err error
	if p.node, err = p.services.node(ctx, p.agent, false); err != nil {
		return 0, err
	}
	seen, index, err := p.agent.catalog(ctx, p.node, index, wait)
	if err == nil && seen.alive && p.compare(seen).none() {
		return index, p.matched(ctx, seen)
	}
	if err != nil && status.Code(err) != codes.Unavailable {
		return 0, err
	}
	// Something is wrong; perhaps the agent has another node name now.
	if p.node, err = p.services.node(ctx, p.agent, true); err != nil {
		return 0, err
	}
	if seen, index, err = p.agent.catalog(ctx, p.node, 0, 0); err != nil {
		return 0, err
	}
	if p.compare(seen).none() {
		return index, p.matched(ctx, seen)
	}
	if err := p.repairAgent(ctx, seen); err != nil {
		return 0, err
	}
	return p.settle(ctx)
}

func (p *pass) compare(v *view) *differences {
	d := &differences{drifted: map[string]string{}}
	for id, w := range p.wanted {
		if reason := v.drift(id, w.parts()[id]); reason != "" {
			d.drifted[id] = reason
		}
	}
	for id, s := range v.services {
		if p.wanted[id] == nil && owns(p.owner, s.Meta) {
			d.leftover = append(d.leftover, id)
		}
	}
	return d
}

// repairAgent registers what is wrong at the agent and removes leftovers. If Consul refuses an instance, the
// others are still repaired.
func (p *pass) repairAgent(ctx context.Context, catalog *view) error {
	local, err := p.agent.local(ctx)
	if err != nil {
		return err
	}
	p.leaveForeign(local)
	d := p.compare(local)
	instances := map[*wanted]string{} // with the reasons
	for id, reason := range d.drifted {
		if w := p.wanted[id]; instances[w] == "" || id == w.instance.ID {
			instances[w] = reason
		}
	}
	work := newWork(ctx)
	for w, reason := range instances {
		p.note(w.instance.ID, registration.Registered, reason)
		r := *w.registration
		r.Tags = p.tags(w, catalog)
		stale := false
		for id, part := range w.parts() {
			stale = stale || len(local.staleChecks(id, part)) > 0
		}
		work.do(func(ctx context.Context) error {
			defer p.services.forgetCheck(p.agent.consul, r.ID+sidecarSuffix)
			return p.agent.register(ctx, &r, stale)
		})
	}
	for _, id := range d.leftover {
		p.note(id, registration.Removed, "not wanted")
		if of, ok := strings.CutSuffix(id, sidecarSuffix); ok && slices.Contains(d.leftover, of) {
			continue // removed before its service
		}
		work.do(func(ctx context.Context) error {
			if slices.Contains(d.leftover, id+sidecarSuffix) {
				if err := p.agent.deregister(ctx, id+sidecarSuffix); err != nil {
					return err
				}
			}
			return p.agent.deregister(ctx, id)
		})
	}
	return work.wait()
}

// leaveForeign takes the instances whose ids another owner has at the agent out of the pass.
func (p *pass) leaveForeign(local *view) {
	for id, w := range p.wanted {
		if have := local.services[id]; have != nil && foreign(p.owner, have.Meta) {
			p.note(w.instance.ID, registration.Conflict, conflict(p.owner, have))
			for part := range w.parts() {
				delete(p.wanted, part)
			}
		}
	}
}

// settle waits until the catalog matches. Remaining differences are written to the catalog after patience.
func (p *pass) settle(ctx context.Context) (uint64, error) {
	best, since, pushed := -1, time.Now(), false
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, patience/4) {
		seen, index, err := p.agent.catalog(ctx, p.node, 0, 0)
		if err != nil {
			return 0, err
		}
		d := p.compare(seen)
		if d.none() {
			return index, p.matched(ctx, seen)
		}
		if n := d.count(); best < 0 || n < best {
			best, since = n, time.Now()
		}
		if time.Since(since) > patience {
			if pushed {
				return 0, p.unsettled(d)
			}
			if err := p.push(ctx, d, seen); err != nil {
				return 0, err
			}
			pushed, best = true, -1
		}
		if err := sleep(ctx, pause); err != nil {
			return 0, consul.Error(err, p.agent.consul, "wait until the catalog says what the agent says")
		}
	}
}

func (p *pass) unsettled(d *differences) error {
	id := slices.Min(slices.AppendSeq(slices.Clone(d.leftover), maps.Keys(d.drifted)))
	reason := cmp.Or(d.drifted[id], "not wanted")
	return status.Errorf(codes.Unavailable,
		"Consul %q (%s): the catalog does not keep what is written to it for %d services, such as %q (%s); the Consul agent's log may say why",
		p.agent.consul.Name, p.agent.consul.Address, d.count(), id, reason)
}

// matched takes what is of interest from a catalog that matches.
func (p *pass) matched(ctx context.Context, seen *view) error {
	p.keepTags(seen)
	ca, err := p.proxyCA(ctx)
	if err != nil {
		return err
	}
	work := newWork(ctx)
	for id, w := range p.wanted {
		have := seen.services[w.proxyID()]
		c := seen.checks[id][checkPrefix(id)+":1"]
		if c != nil && c.Name == listeningCheck && p.services.isNew(p.agent.consul, c) {
			work.do(func(ctx context.Context) error { return p.agent.quicken(ctx, have) })
		}
		if known := w.instance.ProxyDigest; id != w.instance.ID || known == "" || have == nil || have.Proxy == nil {
			continue
		} else if now := proxyDigest(have.Proxy, ca); now != known {
			p.note(id, registration.Reconfigured, "proxy")
			if c := p.done[id]; c.Action == registration.Reconfigured { // else the next pass reports it
				c.ProxyDigest = now
				p.done[id] = c
			}
		}
	}
	return work.wait()
}

// proxyCA returns the certificates with which proxies verify Consul; empty: there is no proxy.
func (p *pass) proxyCA(ctx context.Context) (string, error) {
	for _, w := range p.wanted {
		if w.instance.ProxyDigest != "" {
			return consul.ProxyCA(ctx, p.agent.Client, p.agent.consul)
		}
	}
	return "", nil
}

// proxyDigest is that of the parts of a proxy's configuration which its stream does not have: Consul's, with the
// proxy-defaults, and the CA.
func proxyDigest(p *api.AgentServiceConnectProxyConfig, ca string) string {
	text, err := json.Marshal([]any{p.Config, p.AccessLogs, ca})
	if err != nil {
		return "" // it came as JSON
	}
	return fmt.Sprintf("%x", sha256.Sum256(text))
}

func (p *pass) note(id string, action registration.Action, reason string) {
	if _, known := p.done[id]; !known {
		p.done[id] = registration.Change{ID: id, Action: action, Reason: reason}
	}
}

// changes returns the changes that were made and the conflicts, by id.
func (p *pass) changes() []registration.Change {
	var out []registration.Change
	for _, id := range slices.Sorted(maps.Keys(p.done)) {
		out = append(out, p.done[id])
	}
	return out
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
