package controllers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/sdk/storage"
)

// asked is a registered volume as a call needs it, with its secrets opened for
// this one call. Where secrets are given they are taken in place of the volume's.
func (c *Controllers) asked(ctx context.Context, v claim.Volume, capability storage.Capability, secrets map[string]string) (storage.Volume, error) {
	if len(secrets) == 0 {
		var err error
		if secrets, err = c.cfg.Secrets(ctx, v); err != nil {
			return storage.Volume{}, fmt.Errorf("open the secrets of volume %q: %w", v.VolumeRef, err)
		}
	}
	return storage.Volume{
		Name: v.String(), ExternalID: v.ExternalID, Context: v.Context, Secrets: secrets, Capability: capability,
	}, nil
}

// capabilities are all those that the volume may be claimed with, with its mount
// options.
func capabilities(v claim.Volume) []storage.Capability {
	var out []storage.Capability
	for _, have := range v.Capabilities {
		out = append(out, capability(v, have))
	}
	return out
}

// current is the capability that the volume is in use with; the zero one while
// nobody claims it.
func current(v claim.Volume) storage.Capability {
	if v.AccessMode == "" {
		return storage.Capability{}
	}
	return capability(v, claim.Capability{AccessMode: v.AccessMode, AttachmentMode: v.AttachmentMode})
}

func capability(v claim.Volume, modes claim.Capability) storage.Capability {
	c := storage.Capability{
		AccessMode:     storage.AccessMode(modes.AccessMode),
		AttachmentMode: storage.AttachmentMode(modes.AttachmentMode),
	}
	if modes.AttachmentMode == claim.FileSystem {
		o := v.MountOptions
		c.FSType, c.MountFlags, c.VolumeMountGroup = o.FSType, slices.Clone(o.Flags), o.Group
	}
	return c
}

// maxName is the longest name that a driver must take, in bytes (CSI spec, "Size
// Limits").
const maxName = 128

// driverName is the name under which a driver is to make something: the same for
// the same parts for all time, so that a create can be repeated, and another for
// anything else. The parts alone do not tell: "a-b" and "c" read like "a" and "b-c".
func driverName(clusterID, kind string, parts ...string) string {
	h := sha256.New()
	for _, s := range append([]string{clusterID, kind}, parts...) {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	suffix := "-" + hex.EncodeToString(h.Sum(nil)[:8])
	name := strings.Join(parts, "-")
	return name[:min(len(name), maxName-len(suffix))] + suffix
}

func topologies(all []claim.Topology) []storage.Topology {
	var out []storage.Topology
	for _, t := range all {
		out = append(out, t.Segments)
	}
	return out
}

func claimTopologies(all []storage.Topology) []claim.Topology {
	var out []claim.Topology
	for _, t := range all {
		out = append(out, claim.Topology{Segments: t})
	}
	return out
}
