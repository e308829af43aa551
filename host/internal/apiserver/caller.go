package apiserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/user"
	"slices"
	"strconv"
	"syscall"
	"unsafe"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	ledger "github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/apiserver/acl"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/system/tracing"
	"github.com/pannier/pannier/internal/errcode"
	"github.com/pannier/pannier/sdk/api"
)

// callIDLength is the length of a call's id, of five bits a character.
const callIDLength = 12

// admit identifies the caller of a procedure, and refuses callers that may make no call at all: strangers, and callers
// without a token where no policy is for them. With an error too, the caller is returned as far as it is known.
func (s *Server) admit(ctx context.Context, procedure string, header http.Header) (*call.Caller, error) {
	id := rand.Text()[:callIDLength]
	c := &call.Caller{Peer: peerOf(ctx), Plugin: pluginOf(ctx), ID: id, Trace: tracing.TraceID(ctx)}
	if cert, ok := transport.PeerFrom(ctx); ok {
		if c.Cert = &cert; cert.Role != pki.CLI {
			c.Asker, c.Key = header.Get(call.ForwardedHeader), header.Get(callHeader)
		}
		if cert.Role == pki.Node {
			c.Asker = call.Shortened(c.Asker)
		}
	} else if c.Plugin == "" {
		c.Root = s.access.owns(c.Peer)
		if err := s.access.check(c.Peer); err != nil && !needOf(procedure).checksCaller {
			return c, err
		}
	}
	if key := attemptOf(ctx).key; key != "" {
		c.Key = key
	}
	if err := s.bind(ctx, c); err != nil {
		return c, call.WithCode(ctx, err)
	}
	if s.cfg.ACL == nil {
		c.Rules = acl.Management.Within(c.Bound)
		return c, nil
	}
	secret := header.Get(api.TokenHeader)
	if secret == "" && s.cfg.SocketRoot && c.Root {
		c.Rules = acl.Management
		return c, nil
	}
	identity, err := s.cfg.ACL.Resolve(ctx, secret)
	if err != nil {
		return c, call.WithCode(ctx, fmt.Errorf("look up the caller's permissions: %w", err))
	}
	c.Identity = identity
	if c.Accessor == "" && len(c.Policies) == 0 && !needOf(procedure).checksCaller {
		err = c.Lacks("")
		return c, err
	}
	c.Rules = c.Within(c.Bound)
	return c, nil
}

// errNodeHere: only servers can tell to which namespaces a node is bound, and nodes call no others. A node does not
// forward such a call either: it would lend the caller what it is bound to itself.
var errNodeHere = errcode.PermissionDenied.New("a node's certificate is for the API of servers: use one of the role cli")

// bind reads to which namespaces the node is bound from which the call came, directly or through a server: whatever
// token is used there, it opens no more than these.
func (s *Server) bind(ctx context.Context, c *call.Caller) error {
	from := c.Origin()
	switch {
	case from == nil || from.Role != pki.Node:
		return nil
	case s.cfg.Ledger == nil && (*from == *c.Cert && from.Name != s.cfg.Name):
		return fmt.Errorf("%s: %w", from, errNodeHere)
	case s.cfg.Ledger == nil:
		return nil // the server that passed it on has decided
	}
	n, err := call.Get(ctx, s.cfg.Ledger, (*state.ReadTx).Node, from.Name)
	if c.Bound = n.Namespaces; errors.Is(err, claim.ErrNodeNotFound) {
		return nil
	}
	return err
}

// stillMay repeats admit and the permission check in a long call, since tokens expire and are deleted. If they cannot
// be checked now the caller keeps its rights.
func (s *Server) stillMay(ctx context.Context, c *call.Caller, spec connect.Spec, header http.Header, msg any,
) (*call.Caller, error) {
	now, err := s.admit(ctx, spec.Procedure, header)
	switch {
	case errors.Is(err, ledger.ErrExpired), errors.Is(err, ledger.ErrUnknownToken),
		connect.CodeOf(err) == connect.CodePermissionDenied:
		return c, err
	case err != nil:
		return c, nil //nolint:nilerr // the ledger may be away for a moment; the next message asks again
	}
	return now, needOf(spec.Procedure).check(now, msg)
}

// errNoCertificate is why the caller over HTTPS is unknown.
var errNoCertificate = errors.New("it showed no certificate, which the API needs besides a token: set " +
	"PANNIER_CLIENT_CERT and PANNIER_CLIENT_KEY; one is made with: pannier tls cert create -cli -name NAME")

type peerKey struct{}

// connContext adds the peer of a connection to the context of its requests.
func connContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, readPeer(c))
}

func peerOf(ctx context.Context) call.Peer {
	if p, ok := ctx.Value(peerKey{}).(call.Peer); ok {
		return p
	}
	return call.UnknownPeer(errors.New("the connection is not one of the unix socket"))
}

func readPeer(c net.Conn) (p call.Peer) {
	sock, ok := c.(syscall.Conn)
	if !ok {
		return call.UnknownPeer(fmt.Errorf("a %T has no peer credentials", c))
	}
	raw, err := sock.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { p.Groups, p.Err = peerGroups(fd) })
	}
	peer, failed := process.AtSocket(sock)
	if err = errors.Join(p.Err, err, failed); err != nil {
		return call.UnknownPeer(err)
	}
	p.PID, p.UID, p.GID, p.Process = int(peer.Pid), peer.Uid, peer.Gid, peer.Process
	return p
}

// peerGroups reads the peer's supplementary groups. The kernel returns the size needed if the buffer is too small.
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

// access is which local processes may call.
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
		return a, fmt.Errorf(
			"the group %q that may use the API's socket is not known on this machine: make it (groupadd --system %s), or change socket_group",
			group, group)
	}
	return a, nil
}

// owns reports whether a peer is root or the agent's own user.
func (a access) owns(p call.Peer) bool { return p.Err == nil && (p.UID == 0 || p.UID == a.self) }

// check returns an error, with its code, if the peer may not call.
func (a access) check(p call.Peer) error {
	if p.Err != nil {
		return connect.NewError(connect.CodePermissionDenied, fmt.Errorf("the caller is not known: %w", p.Err))
	}
	if a.owns(p) {
		return nil
	}
	if a.group >= 0 && (p.GID == uint32(a.group) || slices.Contains(p.Groups, uint32(a.group))) {
		return nil
	}
	how := "run it as root, or set socket_group in the agent's configuration"
	if a.name != "" {
		how = fmt.Sprintf("run it as root, or add the user to the group %q and log in again", a.name)
	}
	return connect.NewError(connect.CodePermissionDenied,
		fmt.Errorf("user %q (uid %d) may not use this agent's API: %s", p.UserName(), p.UID, how))
}
