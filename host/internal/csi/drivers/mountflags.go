package drivers

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/pannier/pannier/internal/errcode"
	"github.com/pannier/pannier/sdk/storage"
)

// ErrMountFlag means that a volume or workload asks for a mount flag that the driver's operator has not allowed.
var ErrMountFlag = errcode.FailedPrecondition.New("mount flag is not allowed")

// harmless are the mount flags that everyone may ask for: they change nothing for other volumes and for the host, and
// give nobody rights.
var harmless = []string{
	"ro", "rw", "noatime", "nodiratime", "relatime", "strictatime", "lazytime", "sync", "dirsync",
	"noexec", "nosuid", "nodev", "nosymfollow", "discard", "nodiscard",
	"nfsvers", "vers", "minorversion", "proto", "hard", "soft", "timeo", "retrans", "rsize", "wsize", "nolock", "actimeo",
}

// CheckMountFlags returns ErrMountFlag unless all mount flags are harmless or in AllowedMountFlags. Its text has the
// flags' names only: a value may be a secret.
func (s Spec) CheckMountFlags(flags []string) error {
	var refused []string
	for flag := range eachFlag(flags) {
		name, _, _ := strings.Cut(flag, "=")
		allowed := func(a string) bool { return a == flag || a == name }
		if strings.ContainsFunc(flag, unicode.IsControl) ||
			!slices.ContainsFunc(harmless, allowed) && !slices.ContainsFunc(s.AllowedMountFlags, allowed) {
			refused = append(refused, strconv.Quote(name))
		}
	}
	if len(refused) == 0 {
		return nil
	}
	return fmt.Errorf("mount_flags: %s: %w for driver %q: leave it out, or have root write into the block csi_driver %q of "+
		"the agent's configuration: allowed_mount_flags = [%s]", strings.Join(refused, ", "), ErrMountFlag, s.ID, s.ID,
		strings.Join(append(quoted(s.AllowedMountFlags), refused...), ", "))
}

func quoted(flags []string) (all []string) {
	for _, flag := range flags {
		all = append(all, strconv.Quote(flag))
	}
	return all
}

// eachFlag yields the flags; one string may have several (mount(8)).
func eachFlag(flags []string) iter.Seq[string] {
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
