package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/pannier/pannier/host/internal/system/process"
)

// Verified is what a file turned out to be.
type Verified struct {
	Name    string // of the plugin that it stands for: the file's, without a version
	Known   bool   // this host has a plugin of that name
	Kind    string
	Version string
	SHA256  string
	Healthy bool
	Message string // why it is not healthy
}

// Verify tries whether a file could serve as a plugin. A process of it is started beside
// everything, brought up and probed as for a swap, with the configuration of the plugin
// of its name, and ended; callers see nothing of it, and nothing of it is left. path must
// be absolute. Errors: fs.ErrNotExist; ErrClosed; why a swap to the file would fail.
func (s *Supervisor) Verify(ctx context.Context, path string) (Verified, error) {
	s.imu.RLock()
	if s.closed() {
		s.imu.RUnlock()
		return Verified{}, ErrClosed
	}
	s.running.Add(1) // Close waits
	s.imu.RUnlock()
	defer s.running.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)() //nolint:contextcheck // the supervisor's end, beside the caller's

	v, err := s.verify(ctx, path)
	if err != nil {
		err = fmt.Errorf("verify %s: %w", path, err)
	}
	return v, err
}

func (s *Supervisor) verify(ctx context.Context, path string) (v Verified, err error) {
	v.Name, _ = splitName(filepath.Base(path))
	if err := mayBePlugin(path, v.Name); err != nil {
		return v, err
	}
	serving := s.instance(v.Name)
	v.Known = serving != nil
	i := s.newVerifier(v.Name)
	defer func() { err = errors.Join(err, i.removeFiles()) }()
	tail, stopTail := context.WithCancel(context.WithoutCancel(ctx))
	var tailing sync.WaitGroup
	tailing.Go(func() {
		if err := process.Tail(tail, i.logPath, i.log); err != nil {
			i.log.Error("the output of a file that is verified is not logged", "error", err)
		}
	})
	defer tailing.Wait()
	defer stopTail()

	gen, err := i.launch(ctx, source{path: path})
	if err != nil {
		return v, err
	}
	defer func() { err = errors.Join(err, i.end(ctx, gen)) }()
	v.Kind, v.Version, v.SHA256 = gen.kind, gen.version, gen.sha
	v.Healthy, v.Message = gen.firstHealth.healthy, gen.firstHealth.message
	if v.Known {
		if kind := serving.snapshot().Kind; kind != "" && kind != gen.kind {
			return v, fmt.Errorf("it is of kind %s, and plugin %q is of kind %s", gen.kind, v.Name, kind)
		}
	}
	return v, i.probe(ctx, gen)
}

// mayBePlugin says why a file would not be looked at in the plugin directory.
func mayBePlugin(path, name string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return errors.New("it is not a regular file")
	case info.Mode()&0o111 == 0:
		return errors.New("it is not executable")
	case ignored(filepath.Base(path)):
		return errors.New("its name is that of a file that is still being written")
	case !goodName.MatchString(name):
		return errors.New("its name is not that of a plugin: 1 to 64 letters, digits, - and _")
	}
	// Here the advice of checkInfo would be a bad one.
	if dir, err := os.Stat(filepath.Dir(path)); err == nil && dir.Mode()&os.ModeSticky != 0 && dir.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("everyone can write to %s: put it into a folder that only its owner can write to", filepath.Dir(path))
	}
	return nil
}

// newVerifier is an instance for a process that never serves. It has the plugin's name and
// configuration, and a record of its own, which no plugin's can be mistaken for (see
// goodName): a host that is killed leaves the process to the next one, which ends it as
// it ends that of any plugin that is no longer there.
func (s *Supervisor) newVerifier(name string) *instance {
	id := process.NewToken()
	i := newInstance(s, name, s.spec(name))
	i.log = i.log.Named("verify")
	i.rec = record{Format: recordFormat, Name: "verify." + id}
	i.logPath = filepath.Join(s.dir, ".verify-"+id+".log") // swept by the next host
	return i
}

// leave removes what a guest had besides its process. A process that could not be ended
// is left, by its record, to the next host.
func (i *instance) removeFiles() error {
	var errs []error
	remove := []string{i.logPath, i.logPath + ".offset"}
	if len(i.rec.Runs) == 0 {
		remove = append(remove, recordPath(i.sup.dir, i.rec.Name))
	}
	for _, path := range remove {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := i.sup.collect(); err != nil {
		i.log.Warn("old copies of plugins are left", "error", err)
	}
	return errors.Join(errs...)
}
