package supervisor

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// maxRunDir is the longest path in bytes below which go-plugin's sockets fit into
// the 107 of a Unix address (unix(7)): it adds /plugin-dir and /plugin with up to
// ten digits each.
const maxRunDir = 107 - len("/plugin-dir0123456789/plugin0123456789")

// openRunDir makes the folder of the sockets: run in the supervisor's folder, or
// a short one when that is too deep. It is the host's own, 0711 so that a plugin
// of another user reaches its part of it.
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
			return "", fmt.Errorf("the plugins' sockets need a path of at most %d bytes, and both %s/run and %s are longer", maxRunDir, dir, path)
		}
	}
	if err := os.Mkdir(path, 0o711); err != nil && !errors.Is(err, os.ErrExist) {
		return "", fmt.Errorf("make the folder of the plugins' sockets: %w", err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		return "", fmt.Errorf("look at the folder of the plugins' sockets: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(st.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return "", fmt.Errorf("%s is to hold the plugins' sockets, but is not a folder of the host's own", path)
	}
	return path, nil
}

// sweepRunDir removes what no record names: it is of processes that are gone.
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

// removeRunDir removes the folder of one plugin's socket; "" is none.
func removeRunDir(path string) error {
	if path == "" {
		return nil
	}
	return os.RemoveAll(path)
}

// chown gives paths to a user; "" is the host's own.
func chown(name string, paths ...string) error {
	if name == "" {
		return nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.LookupId(name); err != nil {
			return fmt.Errorf("look up user %q: %w", name, err)
		}
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return fmt.Errorf("read the id of user %q: %w", name, err)
	}
	for _, p := range paths {
		if err := os.Chown(p, uid, -1); err != nil {
			return fmt.Errorf("give a plugin's folder to user %q: %w", name, err)
		}
	}
	return nil
}
