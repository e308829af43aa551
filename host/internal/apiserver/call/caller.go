package call

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/user"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/apiserver/acl"
	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/sdk/api"
)

// Caller identifies who makes a call: by the process or certificate at the other end of the connection, and by the
// token.
type Caller struct {
	Peer
	// Cert is the certificate of the connection; nil: the call came over the unix socket. See Origin.
	Cert *transport.Peer
	// Root is a process of root or of the agent's own user, which controls this machine anyway.
	Root bool
	// Asker names the original caller of a forwarded call, as the forwarding agent says; empty if the call was not
	// forwarded.
	Asker string
	// Plugin is the front door that calls over its own connection; empty: nobody does.
	Plugin string
	// Key is the key of a call, the same for all attempts to have it answered here or elsewhere; empty if there is
	// only one attempt.
	Key string
	// ID and Trace tell the call from others in the log and the audit log; Trace is empty if no trace is recorded. ID is
	// not the key: tokens are derived from that.
	ID, Trace string
	// Bound are the namespaces that the calling node (Origin) is bound to; nil: it is not, or no node calls.
	Bound []string
	acl.Identity
}

// Who is the caller's name for people and in the ledger's records.
func (c *Caller) Who() string {
	switch {
	case c.Accessor != "":
		return fmt.Sprintf("token %q", cmp.Or(c.Name, c.Accessor))
	case c.Cert != nil:
		return c.passedOn()
	case c.Plugin != "":
		return "plugin " + c.Plugin
	default:
		return c.UserName()
	}
}

// on separates a certificate from the caller that its holder named.
const on = " for "

// passedOn names a caller over TLS: by its certificate, unless a server has forwarded the call, which names the caller.
// What a node says comes after the node's own certificate.
func (c *Caller) passedOn() string {
	switch {
	case c.Asker == "":
		return c.Cert.String()
	case c.Cert.Role == pki.Server:
		return c.Asker
	default:
		return c.Cert.String() + on + c.Asker
	}
}

// Origin is the certificate with which the caller entered the cluster: the connection's or, if a server has forwarded
// the call, the one that this server saw. What a caller may do depends on it, whichever way the call came. nil: the
// caller entered over the unix socket of this agent or of the forwarding server.
func (c *Caller) Origin() *transport.Peer {
	if c.Cert == nil {
		return nil
	}
	first, _, _ := strings.Cut(c.passedOn(), on)
	if id, err := pki.ParseIdentity(first); err == nil {
		return &id
	}
	return nil
}

// rootThere matches callers who are root on the server that has forwarded their call (Caller.From).
var rootThere = regexp.MustCompile(`^[^ ]+ \(uid 0\) on [^ ]+$`)

// Operates reports whether the caller is root on a server or has a certificate for operators. Servers are trusted to
// name the original caller, nodes are not.
func (c *Caller) Operates() bool {
	switch origin := c.Origin(); {
	case c.Cert == nil:
		return c.Root
	case origin == nil:
		return rootThere.MatchString(c.Asker)
	default:
		return origin.Role != pki.Node
	}
}

// From names the caller for the agent that its call is passed on to.
func (c *Caller) From(node string) string {
	switch {
	case c.Cert != nil:
		return c.passedOn()
	case c.Plugin != "":
		return fmt.Sprintf("plugin %s on %s", c.Plugin, node)
	default:
		return fmt.Sprintf("%s (uid %d) on %s", c.UserName(), c.UID, node)
	}
}

type callerKey struct{}

// WithCaller adds the caller to the context of its call.
func WithCaller(ctx context.Context, c *Caller) context.Context {
	if c.Key != "" {
		ctx = cluster.WithCall(ctx, c.Key)
	}
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns the caller of the call that ctx belongs to. If there is none it returns one without any rights.
func CallerOf(ctx context.Context) *Caller {
	if c, ok := ctx.Value(callerKey{}).(*Caller); ok {
		return c
	}
	return &Caller{Peer: UnknownPeer(errors.New("the call was not admitted")), Identity: acl.Identity{Rules: acl.Merge()}}
}

// ForwardedHeader marks a forwarded request, and names the original caller. Such a request is never forwarded again.
const ForwardedHeader = "X-Pannier-Forwarded-For"

// SecretOf returns the secret of the token that a handler's call has.
func SecretOf(ctx context.Context) string {
	call, _ := connect.CallInfoForHandlerContext(ctx)
	return call.RequestHeader().Get(api.TokenHeader)
}

// Peer is the process at the other end of a connection, as the kernel knew it at connect (unix(7), SO_PEERCRED and
// SO_PEERGROUPS).
type Peer struct {
	PID    int // for people: another process may have it by now
	UID    uint32
	GID    uint32
	Groups []uint32 // supplementary
	// Process is to be found again by; without a PID: it has ended, or is not visible in the agent's PID namespace.
	Process process.Ref
	Err     error // why it is not known
}

// UserName is the user's name, for people.
func (p Peer) UserName() string {
	id := strconv.FormatUint(uint64(p.UID), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return "uid " + id
}

// UnknownPeer has the ids of nobody: zero would be root.
func UnknownPeer(why error) Peer {
	const nobody = 1<<32 - 1
	return Peer{UID: nobody, GID: nobody, Err: why}
}

// MayIn returns an error if the caller lacks a capability in a namespace.
func (c *Caller) MayIn(namespace string, capability acl.Capability) error {
	if c.AllowNamespace(namespace, capability) {
		return nil
	}
	return c.Lacks(fmt.Sprintf("the capability %q on namespace %q", capability, Shortened(namespace)))
}

// May returns an error if the caller lacks a level of an area.
func (c *Caller) May(area acl.Area, level acl.Level) error {
	if c.Allow(area, level) {
		return nil
	}
	return c.Lacks(fmt.Sprintf("policy %q for %s", level, area))
}

// Has reports whether the caller has a policy.
func (c *Caller) Has(policy string) bool { return slices.Contains(c.Policies, policy) }

// Lacks returns an error that names the missing permission, "" if all are missing, and the token.
func (c *Caller) Lacks(what string) error {
	if c.Accessor == "" && (c.Bound == nil || what == "") {
		text := "ACLs are on and this call has no token: set PANNIER_TOKEN or -token-file"
		if what != "" {
			text = fmt.Sprintf("%s (%s is missing)", text, what)
		}
		return connect.NewError(connect.CodePermissionDenied, errors.New(text))
	}
	whose := fmt.Sprintf("token %q (accessor %s) does not have it; see what it has: pannier acl token self", c.Name,
		c.Accessor)
	if c.Bound != nil {
		whose = fmt.Sprintf("the call was made over node %q, which is bound to the namespaces %q, whatever its token allows",
			c.Origin().Name, c.Bound)
	}
	return connect.NewError(connect.CodePermissionDenied, fmt.Errorf("%s is missing: %s", what, whose))
}

// Sees reports whether the caller has a capability on the namespace of an object.
func (c *Caller) Sees(object interface{ GetNamespace() string }, capability acl.Capability) bool {
	return c.AllowNamespace(NamespaceOr(object.GetNamespace()), capability)
}

// maxObject bounds a name in a log line, in bytes: the request may not have been validated yet.
const maxObject = 2*claim.MaxID + 1

// Shortened bounds a text that comes from a request.
func Shortened(s string) string { return s[:min(len(s), maxObject)] }
