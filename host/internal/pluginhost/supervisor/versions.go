package supervisor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pannier/pannier/host/internal/managed"
)

// Version is a binary of a plugin that can be brought back, waits, or was refused.
type Version struct {
	SHA256  string
	Version string    // empty: not known before it runs
	From    time.Time // when it began to serve, the last time; zero: it has not served, or the host does not know
	Until   time.Time // when another one took over; zero: it serves, or has not served
	Kept    bool      // the host has a copy that served
	Refused string    // why it is not tried again; empty: it is not refused
	File    string    // its file in the plugin directory; empty: none
	// Waits is true if it would run if the plugin were not pinned to another one.
	Waits bool
}

// versions lists the copies that are kept, the one that served last at the end, then the files of the plugin directory
// that are not one of them, the highest version first, and the refused ones that are neither.
func (i *binaries) versions() []Version {
	var all []Version
	at := func(sha string) *Version {
		n := slices.IndexFunc(all, func(v Version) bool { return v.SHA256 == sha })
		if n < 0 {
			n = len(all)
			all = append(all, Version{SHA256: sha, Version: i.rec.VersionOf(sha)})
		}
		return &all[n]
	}
	for _, k := range i.rec.Kept {
		if i.sup.store.Has(k.SHA256, i.name) {
			v := at(k.SHA256)
			v.From, v.Until, v.Kept = k.From, k.Until, true
		}
	}
	files, _ := i.allowed()
	waits := i.rec.Pinned != ""
	for _, f := range files {
		sha, ok := i.procs.Known(f.path)
		if !ok {
			if f.version != nil { // an older one, which nobody needed to look into
				all = append(all, Version{Version: f.version.String(), File: f.path})
			}
			continue
		}
		v := at(sha)
		v.File = f.path
		if v.Version == "" && f.version != nil {
			v.Version = f.version.String()
		}
		if _, no := i.rec.Refused[sha]; !no && waits {
			v.Waits = sha != i.rec.Pinned
			waits = false
		}
	}
	for _, sha := range slices.Sorted(maps.Keys(i.rec.Refused)) {
		at(sha).Refused = i.rec.Refused[sha]
	}
	return all
}

// minSumDigits is how many digits of a checksum are enough to name a copy.
const minSumDigits = 6

// resolve returns the checksum of the version that an operator names: its version, or at least the first 6 digits of
// its checksum.
func (i *binaries) resolve(name string) (sha string, err error) {
	sum := strings.TrimPrefix(strings.ToLower(name), "sha256:")
	if managed.IsSum(sum) {
		return sum, nil
	}
	var found []Version
	for _, v := range i.versions() {
		if v.SHA256 == "" {
			continue
		}
		if v.Version == strings.TrimPrefix(name, "v") || len(sum) >= minSumDigits && strings.HasPrefix(v.SHA256, sum) {
			found = append(found, v)
		}
	}
	switch len(found) {
	case 1:
		return found[0].SHA256, nil
	case 0:
		return "", fmt.Errorf("%w: %q is neither a version, nor the first %d digits of the checksum of one: see: "+
			"pannier plugin versions %s", ErrNoCopy, name, minSumDigits, i.name)
	default:
		return "", fmt.Errorf("%w: %q is sha256:%.12s and sha256:%.12s: name one of them", ErrNoCopy, name,
			found[0].SHA256, found[1].SHA256)
	}
}
