package volumesteps

import (
	"fmt"
	"strings"

	"github.com/pannier/pannier/host/internal/system/mountuse"
	"github.com/pannier/pannier/host/internal/system/owner"
	"github.com/pannier/pannier/internal/procfs"
)

// InUse is the error of a volume that cannot be unmounted while something uses it.
type InUse struct {
	Command string // ends that use; empty: it is not known how
	Err     error
}

func (e *InUse) Error() string { return e.Err.Error() }
func (e *InUse) Unwrap() error { return e.Err }

// inUse adds to the error of an unmount who keeps the mount busy, if a process is seen to.
func (p *paths) inUse(path string, err error) error {
	if !strings.Contains(err.Error(), "busy") { // EBUSY, as drivers put it
		return err
	}
	scene, lookErr := mountuse.Look([]mountuse.Original{{Path: path}}, nil)
	if lookErr != nil {
		return err
	}
	defer scene.Close()
	users := scene.Users(false)
	if len(users) == 0 {
		return err
	}
	what, stop := user(users[0])
	return &InUse{stop, fmt.Errorf("%w; it is in use by %s: stop that, and the release continues", err, what)}
}

// user names a process for an operator, and what ends it.
func user(u mountuse.User) (what, stop string) {
	what = fmt.Sprintf("process %d (%s): %s", u.PID, procfs.Command(u.PID), u.Why)
	of := owner.Of(u.PID, mountuse.ControlGroup(u.PID))
	if of.Name != "" {
		what = of.Name + ", " + what
	}
	return what, of.Stop
}
