package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/system/signing"
)

// Verified is the result of verifying a file.
type Verified struct {
	Name    string // that the process reports; of one that reports none, the file's without a version
	Known   bool   // this host has a plugin with the file's name
	Kind    string
	Version string
	SHA256  string
	Healthy bool
	Message string // why it is not healthy
}

// Verify tests whether a file could serve as a plugin. It starts the file beside the running plugins, with the
// configuration of the plugin of its name, brings it up and probes it as for a swap, and ends it. Callers notice
// nothing, and nothing is left. path must be absolute. Errors: fs.ErrNotExist; ErrClosed; why a swap to the file
// would fail.
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
	defer context.AfterFunc(s.ctx, cancel)() //nolint:contextcheck // also ends with the supervisor

	v, err := s.verify(ctx, path)
	if err != nil {
		err = fmt.Errorf("verify %s: %w", path, err)
	}
	return v, err
}

func (s *Supervisor) verify(ctx context.Context, path string) (v Verified, err error) {
	v.Name, _ = signing.SplitVersion(filepath.Base(path))
	if err := mayBePlugin(path, v.Name); err != nil {
		return v, err
	}
	serving := s.instance(v.Name)
	v.Known = serving != nil
	i := s.newVerifier(v.Name, path)
	defer func() { err = errors.Join(err, i.removeFiles()) }()
	defer i.procs.Tail(ctx)()
	p, err := i.procs.Launch(ctx, managed.Source{Path: path}, nil)
	if err != nil {
		return v, err
	}
	defer func() { err = errors.Join(err, i.procs.End(ctx, p)) }()
	gen := of(p)
	v.Kind, v.Version, v.SHA256 = p.Run.Kind, p.Run.Version, p.Run.SHA256
	if _, name, _ := strings.Cut(gen.identity, "/"); !strings.HasPrefix(name, "sha256:") {
		v.Name = name
	}
	v.Healthy, v.Message = gen.firstHealth.healthy, gen.firstHealth.message
	if v.Known {
		if kind := serving.snapshot().Kind; kind != "" && kind != v.Kind {
			return v, fmt.Errorf("it is of kind %s, and plugin %q is of kind %s", v.Kind, serving.name, kind)
		}
	}
	return v, i.probe(ctx, gen)
}

// mayBePlugin returns why a file in the plugin directory would be ignored, or nil.
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
	case !goodName().MatchString(name):
		return errors.New("its name is not that of a plugin: 1 to 64 letters, digits, - and _")
	}
	return nil
}

// newVerifier makes an instance for a process that never serves. It has the plugin's name and configuration, and a
// record under a name that no plugin can have (see goodName): if the host is killed, the next one ends the
// process, as it does for any plugin that does not exist any more.
func (s *Supervisor) newVerifier(name, path string) *instance {
	id := process.NewToken()
	i := newInstance(s, name, s.spec(name))
	i.path, i.log = path, i.log.Named("verify")
	i.rec = record{Format: recordFormat, Name: "verify." + id}
	i.logPath = filepath.Join(s.dir, ".verify-"+id+".log") // swept by the next host
	i.manage()
	return i
}

// removeFiles removes what the instance of newVerifier had besides its process. If the process could not be ended,
// the record stays for the next host.
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
		i.log.Warn("old copies of plugins could not be removed", "error", err)
	}
	return errors.Join(errs...)
}
