package apiserver

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/user"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"unsafe"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/cluster"
	ledger "github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/acl"
	"github.com/pannier/pannier/host/internal/peer/pki"
	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/system/tracing"
	"github.com/pannier/pannier/internal/errcode"
	"github.com/pannier/pannier/sdk/api"
)

// caller identifies who makes a call: by the process or certificate at the other end of the connection, and by the
// token.
type caller struct {
	peer
	cert *transport.Peer // nil: the call came over the unix socket
	// asker names the original caller of a forwarded call, as the forwarding agent says; empty if the call was not
	// forwarded.
	asker string
	// plugin is the front door that calls over its own connection; empty: nobody does.
	plugin string
	// call is the key of a call, the same for all attempts to have it answered here or elsewhere; empty if there is
	// only one attempt.
	call string
	// id and trace tell the call from others in the log and the audit log; trace is empty if no trace is recorded. id is
	// not the key: tokens are derived from that.
	id, trace string
	// bound are the namespaces that the calling node is bound to; nil: it is not, or no node calls.
	bound []string
	acl.Identity
}

// who names the caller for people and in the ledger's records.
func (c *caller) who() string {
	switch {
	case c.Accessor != "":
		return fmt.Sprintf("token %q", cmp.Or(c.Name, c.Accessor))
	case c.asker != "" && c.cert.Role == pki.Server:
		return c.asker
	case c.asker != "":
		return fmt.Sprintf("%s, as %s says", c.asker, c.cert)
	case c.cert != nil:
		return c.cert.String()
	case c.plugin != "":
		return "plugin " + c.plugin
	default:
		return c.name()
	}
}

// isRoot reports whether the caller is a process of root or of the agent's own user, which controls this machine
// anyway.
func (c *caller) isRoot(a access) bool {
	return c.cert == nil && c.err == nil && (c.uid == 0 || c.uid == a.self)
}

// passedOn matches original callers of forwarded calls (callerName) that are root or have a certificate for
// operators.
var passedOn = regexp.MustCompile(`^[^ ]+ \(uid 0\) on [^ ]+$|^pannier://[^/ ]+/(server|cli)/[^/ ]+$`)

// operates reports whether the caller is root on a server or has a certificate for operators. Servers are trusted to
// name the original caller, nodes are not.
func (c *caller) operates(a access) bool {
	switch {
	case c.cert == nil:
		return c.isRoot(a)
	case c.asker != "":
		return c.cert.Role == pki.Server && passedOn.MatchString(c.asker)
	default:
		return c.cert.Role != pki.Node
	}
}

// callIDLength is the length of a call's id, of five bits a character.
const callIDLength = 12

type callerKey struct{}

func withCaller(ctx context.Context, c *caller) context.Context {
	if c.call != "" {
		ctx = cluster.WithCall(ctx, c.call)
	}
	return context.WithValue(ctx, callerKey{}, c)
}

// callerOf returns the caller of the call that ctx belongs to. If there is none it returns one without any rights.
func callerOf(ctx context.Context) *caller {
	if c, ok := ctx.Value(callerKey{}).(*caller); ok {
		return c
	}
	return &caller{peer: unknownPeer(errors.New("the call was not admitted")), Identity: acl.Identity{Rules: acl.Merge()}}
}

// secretOf returns the secret of the token that a handler's call has.
func secretOf(ctx context.Context) string {
	call, _ := connect.CallInfoForHandlerContext(ctx)
	return call.RequestHeader().Get(api.TokenHeader)
}

// admit identifies the caller of a procedure, and refuses callers that may make no call at all: strangers, and callers
// without a token where no policy is for them. With an error too, the caller is returned as far as it is known.
func (s *Server) admit(ctx context.Context, procedure string, header http.Header) (*caller, error) {
	c := &caller{peer: peerOf(ctx), plugin: pluginOf(ctx), id: rand.Text()[:callIDLength], trace: tracing.TraceID(ctx)}
	if cert, ok := transport.PeerFrom(ctx); ok {
		if c.cert = &cert; cert.Role != pki.CLI {
			c.asker, c.call = shortened(header.Get(forwardedHeader)), header.Get(callHeader)
		}
	} else if c.plugin == "" {
		if err := s.access.check(c.peer); err != nil {
			return c, err
		}
	}
	if call := attemptOf(ctx).call; call != "" {
		c.call = call
	}
	if err := s.bind(ctx, c); err != nil {
		return c, withCode(ctx, err)
	}
	if s.cfg.ACL == nil {
		c.Rules = acl.Management.Within(c.bound)
		return c, nil
	}
	secret := header.Get(api.TokenHeader)
	if secret == "" && s.cfg.SocketRoot && c.isRoot(s.access) {
		c.Rules = acl.Management
		return c, nil
	}
	identity, err := s.cfg.ACL.Resolve(ctx, secret)
	if err != nil {
		return c, withCode(ctx, fmt.Errorf("look up the caller's permissions: %w", err))
	}
	c.Identity = identity
	if c.Accessor == "" && len(c.Policies) == 0 && !needOf(procedure).withoutToken {
		err = c.lacks(fmt.Sprintf("a policy %q", ledger.Anonymous))
		return c, err
	}
	c.Rules = c.Within(c.bound)
	return c, nil
}

// errNodeHere: only servers can tell to which namespaces a node is bound, and nodes call no others.
var errNodeHere = errcode.PermissionDenied.New("a node's certificate is for the API of servers: use one of the role cli")

// bind reads to which namespaces the node is bound that made or forwarded the call: whatever token is used there, it
// opens no more than these.
func (s *Server) bind(ctx context.Context, c *caller) error {
	if c.cert == nil || c.cert.Role != pki.Node || c.cert.Name == s.cfg.Name && s.cfg.Ledger == nil {
		return nil
	}
	if s.cfg.Ledger == nil {
		return fmt.Errorf("%s: %w", c.cert, errNodeHere)
	}
	n, err := reading(ctx, s, func(tx *state.ReadTx) (claim.Node, error) { return tx.Node(c.cert.Name) })
	if c.bound = n.Namespaces; errors.Is(err, claim.ErrNodeNotFound) {
		return nil
	}
	return err
}

// stillMay repeats admit and the permission check in a long call, since tokens expire and are deleted. If they cannot
// be checked now the caller keeps its rights.
func (s *Server) stillMay(ctx context.Context, c *caller, call connect.Spec, header http.Header, msg any) (*caller,
	error,
) {
	now, err := s.admit(ctx, call.Procedure, header)
	switch {
	case errors.Is(err, ledger.ErrExpired), errors.Is(err, ledger.ErrUnknownToken),
		connect.CodeOf(err) == connect.CodePermissionDenied:
		return c, err
	case err != nil:
		return c, nil //nolint:nilerr // the ledger may be away for a moment; the next message asks again
	}
	return now, needOf(call.Procedure).check(now, msg)
}

// peer is the process at the other end of a connection, as the kernel knew it at connect (unix(7), SO_PEERCRED and
// SO_PEERGROUPS).
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

// errNoCertificate is why the caller over HTTPS is unknown.
var errNoCertificate = errors.New("it showed no certificate, which the API needs besides a token: set " +
	"PANNIER_CLIENT_CERT and PANNIER_CLIENT_KEY; one is made with: pannier tls cert create -cli -name NAME")

type peerKey struct{}

// connContext adds the peer of a connection to the context of its requests.
func connContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, readPeer(c))
}

func peerOf(ctx context.Context) peer {
	if pluginOf(ctx) != "" {
		return unknownPeer(errPlugin)
	}
	if p, ok := ctx.Value(peerKey{}).(peer); ok {
		return p
	}
	return unknownPeer(errors.New("the connection is not one of the unix socket"))
}

// unknownPeer has the ids of nobody: zero would be root.
func unknownPeer(why error) peer {
	const nobody = 1<<32 - 1
	return peer{uid: nobody, gid: nobody, err: why}
}

func readPeer(c net.Conn) (p peer) {
	sock, ok := c.(syscall.Conn)
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

// check returns an error, with its code, if the peer may not call.
func (a access) check(p peer) error {
	if p.err != nil {
		return connect.NewError(connect.CodePermissionDenied, fmt.Errorf("the caller is not known: %w", p.err))
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
	return connect.NewError(connect.CodePermissionDenied,
		fmt.Errorf("user %q (uid %d) may not use this agent's API: %s", p.name(), p.uid, how))
}
