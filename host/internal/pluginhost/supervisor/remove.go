package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/pannier/pannier/host/internal/system/signing"
	"github.com/pannier/pannier/internal/errcode"
)

// ErrHasFile means that a plugin cannot be removed because its file is in the plugin directory.
var ErrHasFile = errcode.FailedPrecondition.New("the plugin has a file")

// Remove ends a plugin whose file is gone, and forgets its copies, versions and pin. Errors: ErrUnknown; ErrHasFile;
// ErrClosed; why its process could not be ended, in which case it goes on.
func (s *Supervisor) Remove(ctx context.Context, name string) error {
	s.rescan()
	i := s.instance(name)
	if i == nil {
		return s.unknown(name)
	}
	if files := s.found.files(name); len(files) > 0 {
		return fmt.Errorf("plugin %q: %w, and would be started again: remove %s first", name, ErrHasFile, files[0].path)
	}
	done := make(chan error, 1)
	s.imu.RLock()
	if s.closed() {
		s.imu.RUnlock()
		return ErrClosed
	}
	s.running.Go(func() { done <- s.forget(i) }) // it outlasts an impatient caller; Close waits for it
	s.imu.RUnlock()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// RemoveFiles removes a plugin's files from the plugin directory, in all versions, with their signatures. What serves
// goes on. Error: ErrUnknown.
func (s *Supervisor) RemoveFiles(name string) error {
	s.rescan()
	if s.instance(name) == nil {
		return s.unknown(name)
	}
	remove := []string{signing.OriginPath(s.cfg.PluginDir, name)}
	for _, f := range s.found.files(name) {
		remove = append(remove, f.path, f.path+signing.SignatureEnd, f.path+signing.SumsEnd)
	}
	var errs []error
	for _, path := range remove {
		errs = append(errs, signing.Remove(path))
	}
	return errors.Join(errs...)
}

// forget ends a plugin and removes its record. A plugin that is configured is then as if it had never run.
func (s *Supervisor) forget(i *instance) error {
	if i.removed.Swap(true) { // by another caller
		select {
		case <-i.gone:
			return nil
		case <-s.closing:
			return ErrClosed
		}
	}
	i.stop()
	i.ended.Wait()
	if s.closed() {
		return ErrClosed
	}
	var err error
	if len(i.rec.Runs) > 0 || !i.loaded {
		err = fmt.Errorf("plugin %q could not be ended: %s", i.name, i.snapshot().LastError)
	} else if gone := os.Remove(recordPath(s.dir, i.name)); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
		err = fmt.Errorf("forget plugin %q: %w", i.name, gone)
	} else {
		err = s.cfg.Services.Forget(i.name)
	}
	if err == nil {
		i.set(EventRemoved, "", func(*Status) {})
	}
	s.imu.Lock()
	if delete(s.instances, i.name); !s.closed() && (err != nil || s.configured(i.name)) {
		s.launch(i.name)
	}
	s.imu.Unlock()
	close(i.gone)
	s.imu.RLock()
	for _, other := range s.instances {
		if other.snapshot().DuplicateOf == i.name {
			s.running.Go(other.startNow)
		}
	}
	s.imu.RUnlock()
	s.rescan() // its file may have come back
	if err := s.collect(); err != nil {
		i.log.Warn("old copies of plugins could not be removed", "error", err)
	}
	s.changed.Notify()
	return err
}
