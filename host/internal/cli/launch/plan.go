package launch

import (
	"fmt"
	"os/user"
	"strconv"
	"strings"
)

// Plan is what the child does. It is passed through a pipe, so that it is not visible in an argument list.
type Plan struct {
	// Join says that the child enters the given mount namespace, where everything is bound already. startIn sets it.
	Join   bool    `json:"join,omitempty"`
	Mounts []Mount `json:"mounts"`
	// VolumesDir is where the host mounts all volumes. The namespace's copies of these mounts are unmounted. Empty:
	// there are none.
	VolumesDir string `json:"volumes_dir,omitempty"`
	// Command is looked up in Env's PATH, in the new namespace.
	Command string   `json:"command"`
	Args    []string `json:"args"`
	// Env is the program's whole environment, as KEY=value.
	Env []string `json:"env"`
	// User of the program; nil: the caller's.
	User *User `json:"user,omitempty"`
	// Parent is the process with which the child ends; Start sets it.
	Parent int `json:"parent"`
}

// Mount binds a mount of the host at the workload's destination.
type Mount struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
	ReadOnly    bool   `json:"read_only"`
	// Block says that the source is a device or another file, not a folder.
	Block bool `json:"block"`
	// SUID and Dev say that set-user-ID programs and device files in it work, unless the source's own mount has nosuid
	// or nodev.
	SUID bool `json:"suid,omitempty"`
	Dev  bool `json:"dev,omitempty"`
}

// User is who runs the program.
type User struct {
	UID    int   `json:"uid"`
	GID    int   `json:"gid"`
	Groups []int `json:"groups"`
	// Name and Home are empty if the system has no such user.
	Name string `json:"name,omitempty"`
	Home string `json:"home,omitempty"`
}

// LookupUser reads USER or USER:GROUP, each a name or a number. A number needs no entry in the system; the group is
// then the same number.
func LookupUser(text string) (*User, error) {
	name, group, hasGroup := strings.Cut(text, ":")
	u := &User{}
	known, err := user.Lookup(name)
	if err != nil {
		known, err = user.LookupId(name)
	}
	if err == nil {
		if u.UID, err = number(known.Uid); err != nil {
			return nil, fmt.Errorf("user %q: %w", name, err)
		}
		if u.GID, err = number(known.Gid); err != nil {
			return nil, fmt.Errorf("user %q: %w", name, err)
		}
		u.Name, u.Home = known.Username, known.HomeDir
	} else {
		if u.UID, err = number(name); err != nil {
			return nil, fmt.Errorf("there is no user %q on this machine", name)
		}
		u.GID = u.UID
	}
	if hasGroup {
		if u.GID, err = lookupGroup(group); err != nil {
			return nil, err
		}
		u.Groups = []int{u.GID}
		return u, nil
	}
	if err := u.joinGroups(known); err != nil {
		return nil, err
	}
	return u, nil
}

// joinGroups adds the user's supplementary groups.
func (u *User) joinGroups(known *user.User) error {
	u.Groups = []int{u.GID}
	if known == nil {
		return nil
	}
	ids, err := known.GroupIds()
	if err != nil {
		return fmt.Errorf("groups of user %q: %w", known.Username, err)
	}
	for _, text := range ids {
		if id, err := number(text); err == nil && id != u.GID {
			u.Groups = append(u.Groups, id)
		}
	}
	return nil
}

func lookupGroup(name string) (int, error) {
	if g, err := user.LookupGroup(name); err == nil {
		return number(g.Gid)
	}
	id, err := number(name)
	if err != nil {
		return 0, fmt.Errorf("there is no group %q on this machine", name)
	}
	return id, nil
}

// number reads a user's or group's id; the highest one means "no change" to the kernel.
func number(text string) (int, error) {
	id, err := strconv.ParseUint(text, 10, 32)
	if err != nil || id == 1<<32-1 {
		return 0, fmt.Errorf("%q is no user or group id", text)
	}
	return int(id), nil
}
