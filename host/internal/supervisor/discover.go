package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// unfinished are endings of files that something is still writing.
var unfinished = []string{"~", ".tmp", ".part", ".partial", ".swp", ".new", ".old", ".bak"}

// discover lists the executables of the plugin directory by their plugin's
// name. A directory that does not exist holds none. What looks like a plugin and
// cannot be one is told through skipped.
func discover(dir string, skipped func(file, reason string)) (map[string]string, error) {
	if err := checkOwner(dir); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read the plugin directory: %w", err)
	}
	found := map[string]string{}
	for _, e := range entries {
		file := e.Name()
		name := strings.TrimSuffix(file, filepath.Ext(file))
		if e.Type() == fs.ModeSymlink && !ignored(file) {
			skipped(file, "it is a symbolic link, and only a file can be verified")
		}
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 || ignored(file) {
			continue
		}
		if !goodName.MatchString(name) {
			skipped(file, "a plugin's name must be 1 to 64 letters, digits, - and _")
			continue
		}
		if other, ok := found[name]; ok {
			skipped(file, fmt.Sprintf("plugin %q is %s already", name, filepath.Base(other)))
			continue
		}
		found[name] = filepath.Join(dir, file)
	}
	return found, nil
}

func ignored(file string) bool {
	return strings.HasPrefix(file, ".") || slices.ContainsFunc(unfinished, func(end string) bool { return strings.HasSuffix(file, end) })
}

// checkOwner refuses what others could replace: whoever writes there runs code
// as the host.
func checkOwner(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	return checkInfo(path, info)
}

func checkInfo(path string, info fs.FileInfo) error {
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return fmt.Errorf("%s can be written by its group or by everyone (mode %04o): run chmod go-w %s", path, mode, path)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d: it must belong to root or to the host's own user", path, st.Uid)
	}
	return nil
}
