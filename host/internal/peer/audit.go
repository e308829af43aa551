package peer

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/peer/transport"
)

// Change is a call with which another agent had something changed outside of the ledger, or got a secret.
type Change struct {
	By     transport.Peer // the caller's certificate
	Method string         // the full name
	Object string         // what the request names; empty if it was refused unread
	// Accessor is that of the Consul token that was made or revoked, as the ledger has it.
	Accessor string
	Allowed  bool
	Code     codes.Code // of the outcome
}

// changeKey is the context key of a call's *Change.
type changeKey struct{}

// noteAccessor adds the accessor of a token to the Change of a call; a server calls itself without one.
func noteAccessor(ctx context.Context, t claim.Token) {
	if c, ok := ctx.Value(changeKey{}).(*Change); ok {
		c.Accessor = cmp.Or(t.Accessor, t.ID)
	}
}

// audit writes the outcome of a call to the audit log, unless the caller is to ask another server.
func (g *guard) audit(ctx context.Context, c *Change, err error) {
	if methods[c.Method]&unaudited != 0 || errors.Is(err, errNotLeading) {
		return
	}
	if c.By, _ = transport.PeerFrom(ctx); err != nil {
		c.Code = codeOf(err)
	}
	c.Allowed = !refused(err)
	g.Audit(ctx, *c)
}

// objectOf names what a request is about, without anything that could be a secret.
func objectOf(req any) string {
	switch m := req.(type) {
	case interface{ GetToken() []byte }:
		t, _ := decode[claim.Token](m.GetToken()) // the handler refuses what cannot be decoded
		return t.Workload.String() + " " + t.Service
	case interface{ GetClaim() []byte }:
		c, _ := decode[claim.Claim](m.GetClaim())
		return c.Volume.String() + " of " + c.Workload.String()
	case interface{ GetVolume() []byte }:
		v, _ := decode[claim.Volume](m.GetVolume())
		return v.String()
	case proto.Message:
		return strings.Join(idsIn(m.ProtoReflect()), "/")
	}
	return ""
}

// idsIn returns the IDs and names in a message and its parts.
func idsIn(m protoreflect.Message) (ids []string) {
	for _, name := range []protoreflect.Name{
		"driver", "id", "namespace", "volume", "external_id", "workload", "snapshot_id", "group_id", "name",
	} {
		switch f := m.Descriptor().Fields().ByName(name); {
		case f == nil || !m.Has(f):
		case f.Message() != nil:
			ids = append(ids, idsIn(m.Get(f).Message())...)
		default:
			ids = append(ids, m.Get(f).String())
		}
	}
	return ids
}
