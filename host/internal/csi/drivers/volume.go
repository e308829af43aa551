package drivers

import (
	"slices"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/sdk/storage"
)

// StorageVolume returns v as an argument for calls of the storage plugin, without secrets. modes are the
// modes that it is used with; zero if the call is not about a use.
func StorageVolume(v claim.Definition, modes claim.Capability) storage.Volume {
	return storage.Volume{
		Name: v.String(), ExternalID: v.ExternalID, Context: v.Context, Capability: StorageCapability(v.MountOptions, modes),
	}
}

// StorageCapability returns modes with the mount options, which only file systems have. It is the only place where the
// ledger's modes become the SDK's: the two modules share no types, but the same names.
func StorageCapability(o claim.MountOptions, modes claim.Capability) storage.Capability {
	c := storage.Capability{
		AccessMode:     storage.AccessMode(modes.AccessMode),
		AttachmentMode: storage.AttachmentMode(modes.AttachmentMode),
	}
	if modes.AttachmentMode == claim.FileSystem {
		c.FSType, c.MountFlags, c.VolumeMountGroup = o.FSType, slices.Collect(eachFlag(o.Flags)), o.Group
	}
	return c
}
