package apiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/host/internal/apiserver/acl"
	"github.com/pannier/pannier/host/internal/peer/pki"
	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/sdk/api"
)

// caller is who makes a call: the process or the certificate at the other end of the
// connection, and what its token says.
type caller struct {
	peer
	cert *transport.Peer // nil: it came over the unix socket
	// asker is for whom an agent has passed the call on, as that agent says; empty: it was
	// not passed on.
	asker string
	// call is the same each time that a call is passed on, or answered here before or after that; empty:
	// it is answered once.
	call string
	acl.Identity
}

// who is the caller for people, and for the ledger's records of who wanted something.
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
	default:
		return c.name()
	}
}

// isRoot says whether the caller is a process that has this machine anyway: root's, or
// of the agent's own user.
func (c *caller) isRoot(a access) bool {
	return c.cert == nil && c.err == nil && (c.uid == 0 || c.uid == a.self)
}

// passedOn is who asked, as an agent names it (Server.asker), where that is root or a
// certificate that is for operators.
var passedOn = regexp.MustCompile(`^[^ ]+ \(uid 0\) on [^ ]+$|^pannier://[^/ ]+/(server|cli)/[^/ ]+$`)

// operates says whether the caller has a server's machine, or a certificate for operators.
// A server is believed for whom it asks; a node is not.
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

type callerKey struct{}

func withCaller(ctx context.Context, c *caller) context.Context {
	if c.call != "" {
		ctx = cluster.WithCall(ctx, c.call)
	}
	return context.WithValue(ctx, callerKey{}, c)
}

// callerOf is who made the call that ctx is of. Without one it may do nothing.
func callerOf(ctx context.Context) *caller {
	if c, ok := ctx.Value(callerKey{}).(*caller); ok {
		return c
	}
	return &caller{peer: unknownPeer(errors.New("the call was not admitted")), Identity: acl.Identity{Rules: acl.Merge()}}
}

// admit says who makes a call, and refuses who may make none at all. The caller is
// as far known as it is also with an error.
func (s *Server) admit(ctx context.Context, header http.Header) (*caller, error) {
	c := &caller{peer: peerOf(ctx)}
	if cert, ok := transport.PeerFrom(ctx); ok {
		if c.cert = &cert; cert.Role != pki.CLI {
			c.asker, c.call = shortened(header.Get(forwardedHeader)), header.Get(callHeader)
		}
	} else if err := s.access.check(c.peer); err != nil && (s.cfg.ACL == nil || !errors.Is(c.err, errNoCertificate)) {
		return c, err
	}
	if call := answeringOf(ctx).call; call != "" {
		c.call = call
	}
	if s.cfg.ACL == nil {
		c.Rules = acl.Management
		return c, nil
	}
	secret := header.Get(api.TokenHeader)
	if secret == "" && s.cfg.SocketRoot && c.isRoot(s.access) {
		c.Rules = acl.Management
		return c, nil
	}
	identity, err := s.cfg.ACL.Resolve(ctx, secret)
	if err != nil {
		return c, withCode(ctx, fmt.Errorf("find out what the caller may do: %w", err))
	}
	c.Identity = identity
	return c, nil
}

// stillMay is admit and the check of the call again, for a call that takes long: tokens
// end and are deleted. What cannot be found out now stays as it was.
func (s *Server) stillMay(ctx context.Context, c *caller, call connect.Spec, header http.Header, msg any) (*caller, error) {
	now, err := s.admit(ctx, header)
	switch {
	case errors.Is(err, acl.ErrExpired) || errors.Is(err, acl.ErrUnknownToken):
		return c, err
	case err != nil:
		return c, nil //nolint:nilerr // the ledger may be away for a moment; the next message asks again
	}
	return now, needOf(call.Procedure).check(now, msg)
}
