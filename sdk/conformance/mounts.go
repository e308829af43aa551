package conformance

import (
	"fmt"

	"github.com/moby/sys/mountinfo"
)

// mountsBelow are the mount points below a folder.
func mountsBelow(dir string) ([]string, error) {
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, fmt.Errorf("read the mounts: %w", err)
	}
	var points []string
	for _, m := range infos {
		points = append(points, m.Mountpoint)
	}
	return points, nil
}
