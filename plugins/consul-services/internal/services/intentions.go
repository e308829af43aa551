package services

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/plugins/internal/consul"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
)

// SetIntentions implements registration.Intender.
func (s *Services) SetIntentions(ctx context.Context, c service.Consul, i registration.Instance) error {
	agent, err := s.agent(c)
	if err != nil {
		return err
	}
	h := holder(i.Owner, i.ID)
	if len(i.Service.Intentions) > 0 {
		s.asked(h)
	}
	_, _, err = agent.setIntentions(ctx, i.Service.Name, h, i.Service.Intentions)
	if err == nil && len(i.Service.Intentions) == 0 {
		s.forget(h)
	}
	if err != nil && len(i.Service.Intentions) == 0 {
		s.sweepLater(held{c, i.Owner}) // the host may be forced to leave them
	}
	return err
}

// setIntentions makes the entry of a service's intentions contain the sources of a holder, and none of it without
// sources. It returns whether it wrote, and the sources that are as somebody else has changed them. AlreadyExists:
// the entry is somebody else's.
func (a *agent) setIntentions(ctx context.Context, name, holder string, sources []string) (wrote bool, changed []string,
	err error,
) {
	entries := a.ConfigEntries()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, patience) {
		have, err := a.intentions(ctx, name)
		if err != nil {
			return false, nil, err
		}
		p, err := planIntentions(name, have, holder, sources)
		if err != nil {
			return false, nil, consul.Error(err, a.consul, "write the intentions of service %q", name)
		}
		var done bool
		switch {
		case p.remove:
			done, _, err = entries.DeleteCAS(api.ServiceIntentions, name, have.ModifyIndex, write(ctx))
		case p.write != nil:
			done, _, err = entries.CAS(p.write, p.write.ModifyIndex, write(ctx))
		default:
			return false, p.changed, nil
		}
		if err != nil {
			return false, nil, a.error(err, "write the intentions of service %q", name)
		}
		if done {
			return true, p.changed, nil
		}
		// Another host was faster.
		if err := sleep(ctx, pause/2+rand.N(pause)); err != nil {
			return false, nil, consul.Error(err, a.consul, "write the intentions of service %q", name)
		}
	}
}

// intentions reads the entry of a service; nil: there is none.
func (a *agent) intentions(ctx context.Context, name string) (*api.ServiceIntentionsConfigEntry, error) {
	entry, _, err := a.ConfigEntries().Get(api.ServiceIntentions, name, query(ctx))
	if consul.Answered(err, http.StatusNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, a.error(err, "read the intentions of service %q", name)
	}
	have, ok := entry.(*api.ServiceIntentionsConfigEntry)
	if !ok {
		return nil, status.Errorf(codes.Internal, "Consul answered a %T for the intentions of service %q", entry, name)
	}
	return have, nil
}

// foreignIntentions is the error for an entry that is not Pannier's.
func foreignIntentions(name string) error {
	return status.Errorf(codes.AlreadyExists, "there is a service-intentions entry %q that is not Pannier's: "+
		"write there who may call the service, and leave intentions out; or, if it is not needed any more: "+
		"consul config delete -kind service-intentions -name %s", name, name)
}

// repairIntentions restores the intentions of the instances, and sweeps the ones that this owner has left.
func (p *pass) repairIntentions(ctx context.Context, instances []registration.Instance) error {
	var mu sync.Mutex
	note := func(i registration.Instance, action registration.Action, reason string) {
		mu.Lock()
		defer mu.Unlock()
		p.done[i.ID+" intentions"] = registration.Change{ID: i.ID, Action: action, Reason: reason}
	}
	work := newWork(ctx)
	for _, i := range instances {
		if len(i.Service.Intentions) == 0 {
			continue
		}
		name := i.Service.Name
		work.do(func(ctx context.Context) error {
			wrote, changed, err := p.agent.setIntentions(ctx, name, holder(p.owner, i.ID), i.Service.Intentions)
			switch {
			case status.Code(err) == codes.AlreadyExists:
				note(i, registration.IntentionsConflict, status.Convert(err).Message())
				return nil
			case err != nil:
				return err
			case len(changed) > 0:
				note(i, registration.IntentionsConflict, fmt.Sprintf("somebody has changed the source %s of the intentions of "+
					"service %q, which stays so: consul config read -kind service-intentions -name %s",
					strings.Join(changed, ", "), name, name))
			case wrote:
				note(i, registration.Registered, "intentions")
			}
			return nil
		})
	}
	if err := work.wait(); err != nil {
		return err
	}
	return p.sweepIntentions(ctx, instances)
}

// sweepIntentions removes this owner's intentions of instances that no longer exist. Each is taken back at its end, so
// this is needed only after a loss of the host's journal, where a host was forced to leave something, and by another
// host for one that is gone for good, which may be each time that one of that name is gone.
func (p *pass) sweepIntentions(ctx context.Context, instances []registration.Instance) error {
	if len(instances) > 0 && !p.services.sweepDue(held{p.agent.consul, p.owner}) {
		return nil
	}
	wanted := map[string]bool{}
	for _, i := range instances {
		wanted[holder(p.owner, i.ID)] = len(i.Service.Intentions) > 0
	}
	entries, _, err := p.agent.ConfigEntries().List(api.ServiceIntentions, query(ctx))
	if err != nil {
		return p.agent.error(err, "list the intentions")
	}
	for _, e := range entries {
		entry, ok := e.(*api.ServiceIntentionsConfigEntry)
		if !ok {
			continue
		}
		held, _ := unpackShares(entry.Meta)
		for h := range held {
			if !strings.HasPrefix(h, ownerMark(p.owner)) || wanted[h] || p.services.askedSince(h, p.began) {
				continue
			}
			if _, _, err := p.agent.setIntentions(ctx, entry.Name, h, nil); err != nil {
				return err
			}
			p.note(entry.Name+" (its intentions)", registration.Removed, "not wanted")
		}
	}
	p.services.swept(held{p.agent.consul, p.owner})
	return nil
}

// asked notes that a holder's intentions are asked for now. A pass that began before knows nothing of that instance.
func (s *Services) asked(holder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	s.lastAsked[holder] = s.count
}

// now is a moment for askedSince.
func (s *Services) now() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

func (s *Services) askedSince(holder string, moment uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastAsked[holder] > moment
}

func (s *Services) forget(holder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.lastAsked, holder)
}

// held are the intentions of an owner in a Consul.
type held struct {
	consul service.Consul
	owner  registration.Owner
}

// sweepDue reports whether leftovers of intentions are possible: after the start of this process, and after some could
// not be taken back.
func (s *Services) sweepDue(h held) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.clean[h]
}

func (s *Services) swept(h held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clean[h] = true
}

func (s *Services) sweepLater(h held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.clean, h)
}
