package launch

import (
	"fmt"
	"os/user"
	"strconv"
	"strings"

	"github.com/pannier/pannier/host/internal/cli/launch/child"
)

// LookupUser reads USER or USER:GROUP, each a name or a number. A number needs no entry in the system; the group is
// then the same number.
func LookupUser(text string) (*child.User, error) {
	name, group, hasGroup := strings.Cut(text, ":")
	u := &child.User{}
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
	}
	u.Groups = []int{u.GID}
	if hasGroup || known == nil {
		return u, nil
	}
	ids, err := known.GroupIds() // the supplementary ones
	if err != nil {
		return nil, fmt.Errorf("groups of user %q: %w", known.Username, err)
	}
	for _, text := range ids {
		if id, err := number(text); err == nil && id != u.GID {
			u.Groups = append(u.Groups, id)
		}
	}
	return u, nil
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
