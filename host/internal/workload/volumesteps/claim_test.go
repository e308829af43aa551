package volumesteps

import (
	"encoding/json"
	"testing"

	"github.com/pannier/pannier/cluster/claim"
)

func TestMountOptionsOfARequestOverrideTheVolumes(t *testing.T) {
	volume := claim.MountOptions{FSType: "ext4", Flags: []string{"noatime", "ro"}, Group: "7"}
	for want, request := range map[string]claim.MountOptions{
		`{"fs_type":"ext4","mount_flags":["noatime","ro"],"volume_mount_group":"7"}`: {},
		`{"fs_type":"xfs","mount_flags":["noatime","ro"],"volume_mount_group":"7"}`:  {FSType: "xfs"},
		`{"fs_type":"ext4","mount_flags":["sync"],"volume_mount_group":"7"}`:         {Flags: []string{"sync"}},
		`{"fs_type":"ext4","mount_flags":["noatime","ro"],"volume_mount_group":"8"}`: {Group: "8"},
	} {
		if got, _ := json.Marshal(override(volume, request)); string(got) != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// The claim that two requests for one volume share is for writing when one of them writes, whichever comes first.
func TestRequestsShareAClaim(t *testing.T) {
	request := func(mode claim.Mode) claim.Claim {
		return claim.Claim{
			Volume: claim.VolumeRef{Namespace: "default", ID: "mysql"}, Mode: mode, AccessMode: claim.SingleNodeWriter,
			AttachmentMode: claim.FileSystem,
		}
	}
	for _, c := range []struct{ first, second, want claim.Mode }{
		{claim.Read, claim.Read, claim.Read},
		{claim.Read, claim.Write, claim.Write},
		{claim.Write, claim.Read, claim.Write},
	} {
		all, err := merge([]claim.Claim{request(c.first)}, request(c.second))
		if err != nil || len(all) != 1 || all[0].Mode != c.want {
			t.Errorf("to %s and to %s: %+v, %v", c.first, c.second, all, err)
		}
	}
	device := request(claim.Read)
	device.AttachmentMode = claim.BlockDevice
	if all, err := merge([]claim.Claim{request(claim.Read)}, device); err == nil {
		t.Errorf("as a file system and as a device: %+v", all)
	}
}
