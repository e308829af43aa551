package filesystem

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// SetGroup gives the root of the file system at mountpoint to a group: owner
// gid, readable, writable and searchable by it, and setgid, so that what is
// made in it belongs to the group too.
func SetGroup(mountpoint string, gid int) error {
	const need = unix.S_ISGID | 0o070
	var st unix.Stat_t
	if err := unix.Stat(mountpoint, &st); err != nil {
		return fmt.Errorf("group of %s: %w", mountpoint, err)
	}
	if int(st.Gid) == gid && st.Mode&need == need {
		return nil
	}
	if err := unix.Chown(mountpoint, -1, gid); err != nil {
		return fmt.Errorf("give %s to group %d: %w", mountpoint, gid, err)
	}
	// chown clears the setgid bit, so the mode comes second.
	if err := unix.Chmod(mountpoint, st.Mode&0o7777|need); err != nil {
		return fmt.Errorf("give %s to group %d: %w", mountpoint, gid, err)
	}
	return nil
}
