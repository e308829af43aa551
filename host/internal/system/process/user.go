package process

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// credential looks up the user with its groups, and the group, that a process runs as; nil if both are the host's own.
// With a group but no user, the process has the host's user and only that group.
func credential(name, group string) (*syscall.Credential, error) {
	if name == "" && group == "" {
		return nil, nil
	}
	cred := &syscall.Credential{Uid: uint32(os.Geteuid())}
	if name != "" {
		if err := setUser(cred, name); err != nil {
			return nil, err
		}
	}
	if group == "" {
		return cred, nil
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		if g, err = user.LookupGroupId(group); err != nil {
			return nil, fmt.Errorf("look up group %q: %w", group, err)
		}
	}
	cred.Gid, err = number(g.Gid)
	return cred, err
}

// CheckUser returns why a process cannot run as a user and a group; empty ones are the host's.
func CheckUser(name, group string) error {
	_, err := credential(name, group)
	return err
}

// IDs returns the numbers of a user and a group, each given by its name or number; -1 for an empty one.
func IDs(name, group string) (uid, gid int, err error) {
	uid, gid = -1, -1
	cred, err := credential(name, group)
	if err != nil || cred == nil {
		return uid, gid, err
	}
	if name != "" {
		uid = int(cred.Uid)
	}
	if group != "" {
		gid = int(cred.Gid)
	}
	return uid, gid, nil
}

func setUser(cred *syscall.Credential, name string) error {
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.LookupId(name); err != nil {
			return fmt.Errorf("look up user %q: %w", name, err)
		}
	}
	ids, err := u.GroupIds()
	if err != nil {
		return fmt.Errorf("look up the groups of user %q: %w", name, err)
	}
	if cred.Uid, err = number(u.Uid); err != nil {
		return err
	}
	if cred.Gid, err = number(u.Gid); err != nil {
		return err
	}
	for _, id := range ids {
		gid, err := number(id)
		if err != nil {
			return err
		}
		cred.Groups = append(cred.Groups, gid)
	}
	return nil
}

func number(id string) (uint32, error) {
	n, err := strconv.ParseUint(id, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("read user or group id %q: %w", id, err)
	}
	return uint32(n), nil
}
