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
