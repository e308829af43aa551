package supervisor

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/pannier/pannier/host/internal/managed"
)

// Reload takes over another configuration of the plugins, and returns those whose configuration differs from the
// present one or was refused before, each with nil, or with why it is not taken over and what serves goes on as it
// was. A changed plugin is tried in a new process, as a new binary is. Reload returns when all of them have been tried.
// Concurrent calls are not allowed. The error is that of a configuration that is not valid, of which nothing is taken
// over, or ErrClosed.
func (s *Supervisor) Reload(ctx context.Context, plugins []Plugin) (map[string]error, error) {
	if err := (Config{DataDir: s.cfg.DataDir, PluginDir: s.cfg.PluginDir, Plugins: plugins}).validate(); err != nil {
		return nil, err
	}
	if s.closed() {
		return nil, ErrClosed
	}
	was := *s.plugins.Load()
	s.plugins.Store(&plugins) // of instances that begin meanwhile
	tried := map[string]error{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, name := range changed(was, plugins, s.Status()) {
		all.Go(func() {
			err := ErrClosed
			if i := s.known(name); i != nil {
				_, err = s.order(ctx, i, func(ctx context.Context, i *instance, gen *generation) (*managed.Process, error) {
					return i.reload(ctx, gen, specIn(plugins, name))
				})
			}
			mu.Lock()
			defer mu.Unlock()
			tried[name] = err
		})
	}
	all.Wait()
	kept := slices.Clone(plugins)
	for n, p := range kept {
		if errors.Is(tried[p.Name], errNotAllowed) {
			kept[n] = specIn(was, p.Name)
		}
	}
	s.plugins.Store(&kept)
	return tried, nil
}

// changed returns the plugins that a configuration has otherwise than another, and those whose settings are refused.
func changed(was, is []Plugin, all []Status) (names []string) {
	for _, p := range slices.Concat(was, is) {
		differs := !reflect.DeepEqual(specIn(was, p.Name).placeless(), specIn(is, p.Name).placeless())
		refused := slices.ContainsFunc(all, func(s Status) bool { return s.Name == p.Name && s.ConfigProblem != "" })
		if (differs || refused) && !slices.Contains(names, p.Name) {
			names = append(names, p.Name)
		}
	}
	return names
}

func (p Plugin) placeless() Plugin {
	p.Where = ""
	return p
}

// known returns the instance of a plugin, and begins it if there is none.
func (s *Supervisor) known(name string) *instance {
	s.imu.Lock()
	defer s.imu.Unlock()
	i := s.instances[name]
	if i == nil && !s.closed() {
		i = s.launch(name)
	}
	return i
}

// errNotAllowed means that a configuration does not allow what serves, and that there is nothing else.
var errNotAllowed = errors.New("the configuration is not taken over")

// reload takes over a configuration. Binaries that were refused are tried again if it may allow them now.
func (i *instance) reload(ctx context.Context, gen *generation, spec Plugin) (*managed.Process, error) {
	was, refused := i.wanted, i.rec.Refused
	i.wanted, i.spec = spec, spec.with(i.spec.settings())
	clear(i.unfit)
	if !i.loaded {
		return nil, nil // its record cannot be read
	}
	if was.Checksum != spec.Checksum || was.Version != spec.Version {
		i.rec.Refused = nil
	}
	next, err := i.settleOrSame(ctx, gen)
	if gen == nil || next != nil {
		return next, err
	}
	if err == nil {
		i.set("", "", func(s *Status) { s.ConfigProblem = "" })
	}
	if not := errors.Join(i.binaries.checkAllowed(gen.Run.SHA256), i.spec.checkVersion(gen.Run.Version)); not != nil {
		i.wanted, i.spec, i.rec.Refused = was, was.with(i.spec.settings()), refused
		return nil, errors.Join(fmt.Errorf("%w: %w", errNotAllowed, not), err, i.rec.save(i.sup.dir))
	}
	return nil, err
}
