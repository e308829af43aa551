package supervisor

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/internal/atomicfile"
	"github.com/pannier/pannier/internal/trusted"
	"github.com/pannier/pannier/sdk/wire"
)

// prepare makes the directories and the other things that the instances share.
func (s *Supervisor) prepare() error {
	// 0711: a plugin that runs as another user must reach its copy and its socket.
	for _, dir := range []string{s.dir, filepath.Join(s.dir, "logs")} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return fmt.Errorf("make the plugins' data directory: %w", err)
		}
	}
	var err error
	if s.runDir, err = openRunDir(s.dir); err != nil {
		return err
	}
	if s.authority, err = loadAuthority(filepath.Join(s.dir, "host.pem"), s.log); err != nil {
		return err
	}
	if err := process.Unlimited(); err != nil {
		s.log.Info("control groups cannot enforce all limits of plugins; the host measures their use instead", "reason",
			strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil
}

// loadAuthority reads the host's certificate authority, and makes it at the first start, or if it is damaged: plugins
// that an earlier one has certified are started anew.
func loadAuthority(path string, log hclog.Logger) (*wire.Authority, error) {
	data, err := os.ReadFile(path)
	if err == nil {
		a, damage := wire.ParseAuthority(data)
		if damage == nil {
			return a, nil
		}
		log.Error("the host's plugin certificate is damaged and is made anew, so all plugins start anew", "path", path, "error", damage)
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read the host's plugin certificate: %w", err)
	}
	a, err := wire.NewAuthority()
	if err != nil {
		return nil, err
	}
	if data, err = a.MarshalPEM(); err != nil {
		return nil, err
	}
	if err := atomicfile.WriteFile(path, data); err != nil {
		return nil, fmt.Errorf("write the host's plugin certificate: %w", err)
	}
	return a, nil
}

// sweep removes what earlier hosts left unfinished. Records that are damaged are set aside, and their processes are
// ended: what they knew is lost.
func (s *Supervisor) sweep(recorded []string) error {
	keep, tokens, damaged := map[string]bool{}, map[string]bool{}, false
	for _, name := range recorded {
		rec, err := loadRecord(s.dir, name)
		if errors.Is(err, managed.ErrDamaged) {
			damaged = true
			aside, failed := managed.SetAside(recordPath(s.dir, name))
			s.log.Error("a plugin's record is damaged: the plugin starts anew, and its pin and refusals are forgotten",
				"plugin", name, "error", err, "kept", aside)
			if failed != nil {
				return failed
			}
			continue
		}
		if err != nil {
			// The plugin's status shows the error. The record may name anything, so remove nothing.
			return nil //nolint:nilerr // see above
		}
		for _, run := range rec.Runs {
			keep[run.Dir] = true
		}
		rec.AddTokens(tokens)
	}
	if damaged {
		s.log.Warn("processes of plugins that are in no record were ended", "pids", process.EndUnrecorded(s.dir, tokens))
	}
	temps, err := filepath.Glob(filepath.Join(s.dir, ".*-*")) // .copy-, .write-
	for _, t := range temps {
		err = errors.Join(err, os.Remove(t))
	}
	return errors.Join(err, sweepRunDir(s.runDir, keep), sweepCursors(s.dir, tokens))
}

// collect removes copies that no plugin runs from and that none keeps.
func (s *Supervisor) collect() error {
	keep := map[string]bool{}
	names, err := recordedNames(s.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		rec, err := loadRecord(s.dir, name)
		if err != nil {
			return err // an unreadable record may name any copy: remove nothing
		}
		rec.Needs(keep)
	}
	return s.store.Collect(keep)
}

// maxRunDir is the longest path, in bytes, below which go-plugin's sockets fit into the 107 bytes of a Unix
// address (unix(7)): go-plugin adds /plugin-dir and /plugin with up to ten digits each.
const maxRunDir = 107 - len("/plugin-dir0123456789/plugin0123456789")

// openRunDir makes the directory of the sockets: run in the supervisor's directory, or a short path when that one
// is too long. It belongs to the host, with mode 0711 so that a plugin that runs as another user reaches its own
// part.
func openRunDir(dir string) (string, error) {
	path := filepath.Join(dir, "run")
	if len(path) > maxRunDir {
		sum := sha256.Sum256([]byte(dir))
		base := "/run"
		if os.Geteuid() != 0 {
			base = os.TempDir()
		}
		path = filepath.Join(base, "pannier-"+hex.EncodeToString(sum[:6]))
		if len(path) > maxRunDir {
			return "", fmt.Errorf("the plugins' sockets need a path of at most %d bytes, and both %s/run and %s are longer",
				maxRunDir, dir, path)
		}
	}
	if err := os.Mkdir(path, 0o711); err != nil && !errors.Is(err, os.ErrExist) {
		return "", fmt.Errorf("make the directory of the plugins' sockets: %w", err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		return "", fmt.Errorf("look at the directory of the plugins' sockets: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(st.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return "", fmt.Errorf("%s is needed for the plugins' sockets, but is not a directory that belongs to the host's user",
			path)
	}
	return path, nil
}

// sweepRunDir removes the sockets that no record names: their processes are gone.
func sweepRunDir(path string, keep map[string]bool) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("sweep the plugins' sockets: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if dir := filepath.Join(path, e.Name()); !keep[dir] {
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	return errors.Join(errs...)
}

// chown makes the user called name the owner of a directory and of a file in it, before the user can replace that. An
// empty name does nothing.
func chown(name, dir, file string) error {
	uid, _, err := process.IDs(name, "")
	if err == nil {
		err = trusted.Permit(file, 0, 0, uid, -1)
	}
	if err == nil {
		err = trusted.Permit(dir, fs.ModeDir, 0, uid, -1)
	}
	if err != nil {
		return fmt.Errorf("give a plugin's directory to user %q: %w", name, err)
	}
	return nil
}
