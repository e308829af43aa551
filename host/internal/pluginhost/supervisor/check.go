package supervisor

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/internal/trusted"
)

// Check looks at the plugins of a host without starting anything. It returns what is known of each, which is its kind
// if it has served, and why configured ones could not be started, by name. The error is why no plugin could be.
func Check(cfg Config) (all []Status, problems map[string]error, err error) {
	if err := cfg.validate(); err != nil {
		return nil, nil, err
	}
	s := New(cfg)
	if err := s.found.read(func(string, string) {}); err != nil {
		return nil, nil, err
	}
	names, err := recordedNames(s.dir)
	if err != nil {
		return nil, nil, err
	}
	names = append(names, s.found.startable()...)
	problems = map[string]error{}
	for _, p := range cfg.Plugins {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if !goodName().MatchString(name) {
			continue // of a process that was only verified
		}
		i := newInstance(s, name, s.spec(name))
		var unread error
		if i.rec, unread = loadRecord(s.dir, name); unread == nil && i.rec.Current() != nil {
			i.status.Kind = i.rec.Current().Kind
		}
		all = append(all, i.status)
		if s.configured(name) {
			if err := errors.Join(unread, i.check()); err != nil {
				problems[name] = err
			}
		}
	}
	return all, problems, nil
}

// check returns why the plugin could not be started, as far as that can be known without a process.
func (i *instance) check() error {
	src, _, err := i.binaries.candidate()
	if err != nil {
		return err
	}
	errs := []error{i.binaries.checkAllowed(src.SHA256)}
	if src.Path != "" {
		if err := trusted.File(src.Path); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", filepath.Base(src.Path), err))
		}
	}
	return errors.Join(append(errs, process.CheckUser(i.spec.User, i.spec.Group))...)
}
