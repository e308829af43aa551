package drivers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/pannier/pannier/internal/errcode"
	"github.com/pannier/pannier/sdk/storage"
)

// ErrMountFlag says that a volume or workload asks for a mount flag that the driver's operator has not allowed.
var ErrMountFlag = errcode.FailedPrecondition.New("mount flag is not allowed")

// harmless are the mount flags that everyone may ask for: they change nothing for other volumes and for the host, and
// give nobody rights.
var harmless = []string{
	"ro", "rw", "noatime", "nodiratime", "relatime", "strictatime", "lazytime", "sync", "dirsync",
	"noexec", "nosuid", "nodev", "nosymfollow", "discard", "nodiscard", "nfsvers", "vers",
}

// CheckMountFlags returns ErrMountFlag unless all mount flags are harmless or in AllowedMountFlags. Its text has the
// flag's name only: a value may be a secret.
func (s Spec) CheckMountFlags(flags []string) error {
	for flag := range eachFlag(flags) {
		name, _, _ := strings.Cut(flag, "=")
		allowed := func(a string) bool { return a == flag || a == name }
		if (slices.ContainsFunc(harmless, allowed) || slices.ContainsFunc(s.AllowedMountFlags, allowed)) &&
			!strings.ContainsFunc(flag, unicode.IsControl) {
			continue
		}
		return fmt.Errorf("mount_flags: %q: %w for driver %q: leave it out, or have root add it to allowed_mount_flags "+
			"in the block csi_driver %q of the agent's configuration", name, ErrMountFlag, s.ID, s.ID)
	}
	return nil
}

// eachFlag yields the flags; one string may have several (mount(8)).
func eachFlag(flags []string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for _, group := range flags {
			for flag := range strings.SplitSeq(group, ",") {
				if flag != "" && !yield(flag) {
					return
				}
			}
		}
	}
}

// Asks reports whether mount flags ask for one flag and not for its opposite after it.
func Asks(flags []string, flag, opposite string) (asks bool) {
	for f := range eachFlag(flags) {
		switch f {
		case flag:
			asks = true
		case opposite:
			asks = false
		}
	}
	return asks
}

// flagsChecked is a client of the storage plugin for one driver. It refuses the mount flags of a definition that a
// driver is asked to check or create; those of a start are checked before it takes its claims.
type flagsChecked struct {
	storage.Client
	driver Spec
}

func (c flagsChecked) check(all []storage.Capability) error {
	for _, capability := range all {
		if err := c.driver.CheckMountFlags(capability.MountFlags); err != nil {
			return err
		}
	}
	return nil
}

// ValidateVolume checks the flags first.
func (c flagsChecked) ValidateVolume(ctx context.Context, d storage.Driver, req storage.ValidateRequest) ([]string,
	error,
) {
	if err := c.check(req.Capabilities); err != nil {
		return nil, err
	}
	return c.Client.ValidateVolume(ctx, d, req)
}

// Create checks the flags first.
func (c flagsChecked) Create(ctx context.Context, d storage.Driver, req storage.CreateRequest) (storage.CreateResponse,
	error,
) {
	if err := c.check(req.Capabilities); err != nil {
		return storage.CreateResponse{}, err
	}
	return c.Client.Create(ctx, d, req)
}
