package supervisor

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"
)

// source is an executable that a process may be started from.
type source struct {
	sha  string
	path string // in the plugin directory; empty: the copy that is kept already
}

// choose says what should run: the copy that an operator pinned, else the highest
// version of the plugin directory that the configuration allows and that was not
// refused, else what served last, or before that.
func (i *instance) choose() (source, error) {
	if i.rec.Pinned != "" {
		return source{sha: i.rec.Pinned}, nil
	}
	var errs []error
	var refused *source
	for _, f := range i.allowed() {
		sha, err := i.sum(f.path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		src := source{sha: sha, path: f.path}
		if _, no := i.rec.Refused[sha]; !no {
			return src, nil
		}
		if refused == nil {
			refused = &src
		}
	}
	for _, sha := range []string{i.rec.Served, i.rec.LastGood} {
		if _, no := i.rec.Refused[sha]; sha != "" && !no && i.sup.store.has(sha, i.name) {
			return source{sha: sha}, nil
		}
	}
	if refused != nil {
		return *refused, nil // better tried again than nothing
	}
	if len(errs) == 0 {
		errs = append(errs, fmt.Errorf("open the plugin: %s: %w", i.sup.pathOf(i.name), syscall.ENOENT))
	}
	return source{}, errors.Join(errs...)
}

// allowed are the plugin's files that the version constraint lets run, the highest
// version first. What a file without a version in its name is, only its process tells.
func (i *instance) allowed() []file {
	return slices.DeleteFunc(i.sup.files(i.name), func(f file) bool {
		return f.version != nil && i.spec.checkVersion(f.version.String()) != nil
	})
}

// hashed is the sum of a file as it was when it was last read.
type hashed struct {
	size    int64
	changed time.Time
	inode   uint64
	sha     string
}

// sum hashes a file, again only where it has changed.
func (i *instance) sum(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("open the plugin: %w", err)
	}
	now := hashed{size: info.Size(), changed: info.ModTime(), inode: inode(info)}
	was, ok := i.sums[path]
	if now.sha = was.sha; ok && now == was {
		return was.sha, nil
	}
	if now.sha, err = hashFile(path); err != nil {
		return "", fmt.Errorf("read the plugin: %w", err)
	}
	i.sums[path] = now
	return now.sha, nil
}
