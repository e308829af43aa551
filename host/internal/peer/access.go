package peer

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"google.golang.org/grpc/metadata"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	peerv1 "github.com/pannier/pannier/host/internal/peer/proto/pannier/peer/v1"
	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/system/pki"
	storagev1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/storage/v1"
)

// The metadata that carry an agent's secret and the ID of its kernel's boot.
const (
	secretKey = "node-secret"
	bootKey   = "node-boot"
)

// access says who may make a call.
type access int

const (
	// byAgents: every agent, for itself; a node needs its secret. The leader answers.
	byAgents access = iota + 1
	// byServers: servers, with the leader's term. Every agent answers.
	byServers
	// amongServers: servers, for themselves. Every server answers.
	amongServers

	// unaudited, added to one of them, leaves a call out of the audit log: it changes nothing but the ledger, and
	// hands out no secret.
	unaudited access = 1 << 3
)

// methods says who may make which call. Calls that are not in it are refused.
var methods = map[string]access{
	peerv1.ServersService_Apply_FullMethodName:           byAgents | unaudited, // which commands: below
	peerv1.ServersService_Query_FullMethodName:           byAgents | unaudited, // which queries: below
	peerv1.ServersService_Heartbeat_FullMethodName:       byAgents | unaudited,
	peerv1.ServersService_Attach_FullMethodName:          byAgents,             // with a claim on the volume
	peerv1.ServersService_VolumeSecrets_FullMethodName:   byAgents,             // with a claim on the volume
	peerv1.ServersService_IntendToken_FullMethodName:     byAgents | unaudited, // its own tokens
	peerv1.ServersService_DeriveToken_FullMethodName:     byAgents,             // its own tokens
	peerv1.ServersService_RevokeToken_FullMethodName:     byAgents,             // its own tokens
	peerv1.ServersService_ReplaceWorkload_FullMethodName: byAgents,             // that one of its own waits for

	peerv1.ServersService_SecretsKeys_FullMethodName:     amongServers,
	peerv1.ServersService_OfferSecretsKey_FullMethodName: byServers,

	peerv1.NodeService_ExpandVolume_FullMethodName:  byServers,
	peerv1.NodeService_VolumeStats_FullMethodName:   byServers | unaudited,
	peerv1.NodeService_Owns_FullMethodName:          byServers | unaudited,
	peerv1.NodeService_DetachUnknown_FullMethodName: byServers,
	peerv1.NodeService_Detach_FullMethodName:        byServers,
	peerv1.NodeService_StopWorkload_FullMethodName:  byServers,
	peerv1.NodeService_NodeInfo_FullMethodName:      byServers | unaudited,

	// The controller's calls of the storage protocol. Mounting is up to each node alone.
	storagev1.StorageService_ValidateVolume_FullMethodName:      byServers | unaudited,
	storagev1.StorageService_Attach_FullMethodName:              byServers,
	storagev1.StorageService_Detach_FullMethodName:              byServers,
	storagev1.StorageService_Create_FullMethodName:              byServers,
	storagev1.StorageService_Delete_FullMethodName:              byServers,
	storagev1.StorageService_Expand_FullMethodName:              byServers,
	storagev1.StorageService_List_FullMethodName:                byServers | unaudited,
	storagev1.StorageService_Capacity_FullMethodName:            byServers | unaudited,
	storagev1.StorageService_Get_FullMethodName:                 byServers | unaudited,
	storagev1.StorageService_Modify_FullMethodName:              byServers,
	storagev1.StorageService_CreateSnapshot_FullMethodName:      byServers,
	storagev1.StorageService_DeleteSnapshot_FullMethodName:      byServers,
	storagev1.StorageService_ListSnapshots_FullMethodName:       byServers | unaudited,
	storagev1.StorageService_CreateGroupSnapshot_FullMethodName: byServers,
	storagev1.StorageService_DeleteGroupSnapshot_FullMethodName: byServers,
	storagev1.StorageService_GetGroupSnapshot_FullMethodName:    byServers | unaudited,
}

// commands are the commands that a node may send, and their conditions. All others are reserved for servers.
var commands = []rule{
	of(func(_ context.Context, n caller, c *command.PutNode) error {
		return either(n.own("node record", c.Node.Name), n.sameSecret(c.Node.SecretHash))
	}),
	of(func(ctx context.Context, n caller, c *command.StartWorkload) error {
		for _, held := range c.Claims {
			if held.Node != "" && held.Node != n.Name {
				return n.own("claim", held.Node)
			}
		}
		for _, t := range c.Tokens {
			if t.Node != "" && t.Node != n.Name {
				return n.own("token", t.Node)
			}
			if t.Accessor != "" {
				return denied("only the servers know the accessor of a token")
			}
		}
		if err := n.own("workload", c.Node); err != nil {
			return err
		}
		return n.startOf(ctx, c)
	}),
	of(func(ctx context.Context, n caller, c *command.AwaitWorkload) error {
		if err := n.own("workload", c.Node); err != nil {
			return err
		}
		return n.waitOf(ctx, c)
	}),
	of(func(_ context.Context, n caller, c *command.EndWorkload) error { return n.own("workload", c.Node) }),
	of(func(ctx context.Context, n caller, c *command.AdvanceClaims) error {
		if c.By != "" {
			return denied("only an operator may vouch that a node is down")
		}
		for at, item := range c.Items {
			if claim.NodeDetached.Before(item.To) || item.Index == 0 {
				return denied("a node may only mark claims as unpublished, each identified by its index")
			}
			if err := n.ownClaim(ctx, item); err != nil {
				return err
			}
			if item.ForcedBy != "" {
				by := fmt.Sprintf("%s for %s", n.Peer, item.ForcedBy) // who it is, is the node's word
				c.Items[at].ForcedBy = by[:min(len(by), claim.MaxBy)]
			}
		}
		return nil
	}),
	of(func(ctx context.Context, n caller, c *command.DeleteTokens) error {
		for _, id := range c.IDs {
			if err := n.ownToken(ctx, claim.Token{ID: id, Node: n.Name}); err != nil {
				return err
			}
		}
		return nil
	}),
	of(func(_ context.Context, n caller, c *command.SetNodeDuty) error {
		d := c.Drain
		only := command.SetNodeDuty{Returns: c.Returns, Name: c.Name, Drain: d}
		if !reflect.DeepEqual(*c, only) || d == nil || n.record.Drain == nil ||
			d.DoneAt.IsZero() || d.By != n.record.Drain.By || !d.StartedAt.Equal(n.record.Drain.StartedAt) {
			return denied("a node may only mark its drain as done")
		}
		return n.own("drain", c.Name)
	}),
}

// queries are the queries that a node may send. All others are reserved for servers.
var queries = []rule{
	of(func(context.Context, caller, *command.QueryCluster) error { return nil }),
	of(func(ctx context.Context, n caller, q *command.QueryVolume) error { return n.mayUse(ctx, q.Ref) }),
	of(func(context.Context, caller, *command.QueryWorkload) error { return nil }), // see answers
	of(func(context.Context, caller, *command.QueryClaims) error { return nil }),   // see answers
	of(func(context.Context, caller, *command.QueryACL) error { return nil }),
	of(func(_ context.Context, n caller, q *command.QueryNode) error { return n.own("node record", q.Name) }),
	of(func(_ context.Context, n caller, q *command.QueryOnNode) error {
		return n.own("list of what is on a node", q.Node)
	}),
	of(func(_ context.Context, n caller, q *command.QueryTokens) error {
		return n.own("list of tokens", q.Node)
	}),
}

// rule allows one type of command or query, unless check returns an error.
type rule struct {
	applies func(what any) bool
	check   func(ctx context.Context, n caller, what any) error
}

// of makes the rule for one type.
func of[T any](check func(ctx context.Context, n caller, what T) error) rule {
	return rule{
		applies: func(what any) bool { _, is := what.(T); return is },
		check:   func(ctx context.Context, n caller, what any) error { return check(ctx, n, what.(T)) },
	}
}

// allowed checks a command or query of a node by its rule.
func allowed(ctx context.Context, rules []rule, n caller, what any) error {
	for _, r := range rules {
		if r.applies(what) {
			return r.check(ctx, n, what)
		}
	}
	return denied(fmt.Sprintf("%T is for servers", what))
}

// denied wraps ErrDenied with the reason.
func denied(why string) error { return fmt.Errorf("%w: %s", ErrDenied, why) }

func either(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// caller is a node that makes a call, and what the ledger knows about it.
type caller struct {
	transport.Peer
	hash    string // of the secret sent with the call
	bootID  string
	record  claim.Node
	unknown error // set if the ledger has no record
	leader  *Leader
	// For whom it makes the call: the secret of a token, and a statement of the leader.
	token   string
	grant   []byte
	allowed *allowance // what that caller was allowed; nil: nobody asks
}

// own refuses access to what belongs to another node.
func (n caller) own(what, node string) error {
	if node != n.Name {
		return denied(fmt.Sprintf("node %q asks about a %s of node %q: nodes act for themselves only", n.Name, what, node))
	}
	return nil
}

func (n caller) sameSecret(hash string) error {
	if !sameHash(hash, n.hash) {
		return denied(fmt.Sprintf("the hash in the record of node %q is not that of the secret that it sent", n.Name))
	}
	return nil
}

// ownClaim refuses a claim on another node. A claim that is gone, or was taken again, is harmless: the command does
// not change it.
func (n caller) ownClaim(ctx context.Context, item command.Advance) error {
	var c claim.Claim
	err := n.leader.Ledger.Read(ctx, func(tx *state.ReadTx) (err error) {
		c, err = tx.Claim(item.Volume, item.Workload)
		return err
	})
	switch {
	case errors.Is(err, claim.ErrClaimNotFound) || err == nil && c.Index != item.Index:
		return nil
	case err != nil:
		return err
	default:
		return n.own("claim", c.Node)
	}
}

// ownToken refuses a token of another node, and an ID that is in use by one.
func (n caller) ownToken(ctx context.Context, t claim.Token) error {
	noted, err := get(ctx, n.leader.Ledger.Read, (*state.ReadTx).Token, t.ID)
	switch {
	case errors.Is(err, claim.ErrTokenNotFound):
		return n.own("token", t.Node)
	case err != nil:
		return err
	default:
		return either(n.own("token", t.Node), n.own("token", noted.Node))
	}
}

// look reads what the ledger knows about an agent that makes a call.
func look(ctx context.Context, leader *Leader, peer transport.Peer) (caller, error) {
	n := caller{Peer: peer, leader: leader}
	n.token, n.grant = credentials(ctx)
	values := metadata.ValueFromIncomingContext(ctx, secretKey)
	if len(values) != 1 || values[0] == "" {
		return n, denied(fmt.Sprintf("node %q sent no secret", peer.Name))
	}
	n.hash = hashOf(values[0])
	if boot := metadata.ValueFromIncomingContext(ctx, bootKey); len(boot) == 1 {
		n.bootID = boot[0]
	}
	var err error
	n.record, err = get(ctx, leader.Ledger.Read, (*state.ReadTx).Node, peer.Name)
	if errors.Is(err, claim.ErrNodeNotFound) {
		n.unknown, err = err, nil
	}
	return n, err
}

// isServer reports whether the caller is a server, which may send all commands and queries, also before it has
// registered as a node.
func (n caller) isServer() bool { return n.Role == pki.Server }

// same refuses another machine than the one that the ledger has under the caller's name.
func (n caller) same() error {
	if n.record.SecretHash != "" && !sameHash(n.record.SecretHash, n.hash) {
		return fmt.Errorf("%w: %w: if the node was reinstalled, run on a server: pannier node purge %s; if two machines have"+
			" this name, rename one of them", ErrDenied, claim.ErrNodeSecret, n.Name)
	}
	return nil
}

// known checks that the caller is the machine that the ledger has under its name, in the boot that may use its claims.
func (n caller) known() error {
	if n.unknown != nil && !n.isServer() {
		return fmt.Errorf("%w: the node has not registered yet", n.unknown)
	}
	if err := n.same(); err != nil {
		return err
	}
	if n.record.AnotherBoot(n.bootID) {
		return n.record.EarlierBoot()
	}
	return nil
}

// mayAgent checks whether an agent may make this call. Commands and queries are checked when they are
// decoded. For a heartbeat, the answer itself reports that the ledger does not know the node, or has an
// earlier boot of it.
func mayAgent(ctx context.Context, leader *Leader, peer transport.Peer, req any) error {
	switch req.(type) {
	case *peerv1.ApplyRequest, *peerv1.QueryRequest:
		return nil
	}
	n, err := look(ctx, leader, peer)
	if err != nil {
		return err
	}
	if _, beats := req.(*peerv1.HeartbeatRequest); beats {
		return n.same()
	}
	return n.known()
}

// sender returns the agent that sends commands or queries.
func sender(ctx context.Context, leader *Leader) (caller, error) {
	peer, ok := transport.PeerFrom(ctx)
	if !ok || peer.Role != pki.Server && peer.Role != pki.Node {
		return caller{}, denied("only agents send commands and queries")
	}
	return look(ctx, leader, peer)
}

// admitCommand checks whether an agent may send a command. When a node registers, the ledger checks whether it may.
func (n caller) admitCommand(ctx context.Context, c command.Command) error {
	if _, registers := c.(*command.PutNode); registers {
		if err := n.same(); err != nil {
			return err
		}
	} else if err := n.known(); err != nil {
		return err
	}
	if n.isServer() {
		return nil
	}
	return allowed(ctx, commands, n, c)
}

// admitQuery decodes a query, and checks whether its sender may send it. sees returns what the sender may see of the
// answer.
func admitQuery(ctx context.Context, leader *Leader, query []byte) (q command.Query,
	sees func(answer any, err error) (any, error), err error,
) {
	n, err := sender(ctx, leader)
	if err != nil {
		return nil, nil, err
	}
	check := n.known
	if n.isServer() {
		check = n.same
	}
	if err := check(); err != nil {
		return nil, nil, err
	}
	q, err = command.DecodeQuery(query)
	if err != nil || n.isServer() {
		return q, func(answer any, err error) (any, error) { return answer, err }, err
	}
	if err := allowed(ctx, queries, n, q); err != nil {
		return nil, nil, err
	}
	sees, err = n.answers(ctx, q)
	return q, sees, err
}

// roleMayCall checks whether the holder of a certificate may make the call for itself.
func roleMayCall(peer transport.Peer, method string) (access, error) {
	who, ok := methods[method]
	who &^= unaudited
	switch {
	case !ok:
		return 0, denied(method + " is not served to other agents")
	case who != byAgents && peer.Role != pki.Server:
		return 0, denied(fmt.Sprintf("%s may not call %s: only servers may", peer, method))
	case who == byAgents && peer.Role != pki.Server && peer.Role != pki.Node:
		return 0, denied(fmt.Sprintf("%s may not call %s: only agents may", peer, method))
	}
	return who, nil
}

// mayCall checks whether the holder of a certificate may make the call with this request.
func mayCall(peer transport.Peer, method string, req any) (access, error) {
	who, err := roleMayCall(peer, method)
	if err != nil {
		return 0, err
	}
	if who != byServers {
		named, ok := req.(interface{ GetNode() string })
		if !ok || named.GetNode() != peer.Name {
			return 0, denied(fmt.Sprintf("%s calls %s for another node: agents act for themselves only", peer, method))
		}
	}
	return who, nil
}
