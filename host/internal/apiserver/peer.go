package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"slices"
	"strconv"
	"unsafe"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
)

// peer is the process at the other end of a connection, as the kernel knew it
// when it connected (unix(7), SO_PEERCRED and SO_PEERGROUPS).
type peer struct {
	pid    int // 0: not visible in the agent's pid namespace
	uid    uint32
	gid    uint32
	groups []uint32 // supplementary
	err    error    // why it is not known
}

// name is the user's name, for people.
func (p peer) name() string {
	id := strconv.FormatUint(uint64(p.uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return "uid " + id
}

// errNoCertificate is why the caller over HTTPS is not known. Where there are ACLs, its
// token says enough.
var errNoCertificate = errors.New("it showed no certificate (PANNIER_CLIENT_CERT and PANNIER_CLIENT_KEY)")

type peerKey struct{}

// connContext puts the peer of a connection into the context of its requests.
func connContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, readPeer(c))
}

func peerOf(ctx context.Context) peer {
	if p, ok := ctx.Value(peerKey{}).(peer); ok {
		return p
	}
	return unknownPeer(errors.New("the connection is not one of the unix socket"))
}

// unknownPeer is nobody's: its zero ids would be root's.
func unknownPeer(why error) peer {
	const nobody = 1<<32 - 1
	return peer{uid: nobody, gid: nobody, err: why}
}

func readPeer(c net.Conn) (p peer) {
	sock, ok := c.(*net.UnixConn)
	if !ok {
		return unknownPeer(fmt.Errorf("a %T has no peer credentials", c))
	}
	raw, err := sock.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
			if err != nil {
				p.err = fmt.Errorf("read the peer's credentials: %w", err)
				return
			}
			p.pid, p.uid, p.gid = int(cred.Pid), cred.Uid, cred.Gid
			p.groups, p.err = peerGroups(fd)
		})
	}
	if err = errors.Join(p.err, err); err != nil {
		return unknownPeer(err)
	}
	return p
}

// peerGroups reads the peer's supplementary groups. The kernel says how much room
// it needs where there is too little.
func peerGroups(fd uintptr) ([]uint32, error) {
	groups := make([]uint32, 64)
	for {
		size := uint32(len(groups) * 4)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == unix.ERANGE && int(size) > len(groups)*4:
			groups = make([]uint32, size/4)
		case errno != 0:
			return nil, fmt.Errorf("read the peer's groups: %w", errno)
		default:
			return groups[:size/4], nil
		}
	}
}

// access is who may call.
type access struct {
	self  uint32 // the agent's own user
	group int    // -1: none
	name  string // of the group
}

func newAccess(group string) (access, error) {
	a := access{self: uint32(os.Geteuid()), group: -1, name: group}
	if group == "" {
		return a, nil
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		g, err = user.LookupGroupId(group)
	}
	if err == nil {
		a.group, err = strconv.Atoi(g.Gid)
	}
	if err != nil {
		return a, fmt.Errorf("the group %q that may use the API's socket is not known on this machine: make it (groupadd --system %s), or change socket_group",
			group, group)
	}
	return a, nil
}

// check says whether the peer may call. The error has its code.
func (a access) check(p peer) error {
	if p.err != nil {
		return connect.NewError(connect.CodePermissionDenied, fmt.Errorf("it cannot be told who calls: %w", p.err))
	}
	if p.uid == 0 || p.uid == a.self {
		return nil
	}
	if a.group >= 0 && (p.gid == uint32(a.group) || slices.Contains(p.groups, uint32(a.group))) {
		return nil
	}
	how := "run it as root, or set socket_group in the agent's configuration"
	if a.name != "" {
		how = fmt.Sprintf("run it as root, or add the user to the group %q and log in again", a.name)
	}
	return connect.NewError(connect.CodePermissionDenied, fmt.Errorf("user %q (uid %d) may not use this agent's API: %s", p.name(), p.uid, how))
}
