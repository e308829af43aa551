package cluster

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

// Blocking makes a query wait until what it reads has changed after MinIndex, or until Wait has passed. The zero
// value is answered at once.
type Blocking = command.Blocking

// Ledger is the cluster's replicated state, which the leader changes and reads: a *Node, or peer.Servers on an agent
// without a copy. Apply and Ask give results their types.
type Ledger interface {
	// Apply sends a command to the leader and returns its result. It finds the leader, and repeats the command over
	// elections until ctx ends. Errors: the command's own; ErrNotLeader; ErrUncertain if it may have been applied.
	Apply(ctx context.Context, c command.Command) (result any, err error)
	// Ask sends a query to the leader, as Apply does, and returns its answer, which is never stale. The index is the
	// MinIndex of the next query.
	Ask(ctx context.Context, q command.Query) (answer any, index uint64, err error)
}

// Apply applies a command to a ledger. A command must not be changed or used again after that.
func Apply[R any](ctx context.Context, l Ledger, c command.Of[R]) (result R, err error) {
	outcome, err := l.Apply(ctx, c)
	if err != nil {
		return result, err
	}
	result, ok := outcome.(R)
	if !ok {
		return result, fmt.Errorf("%T has the result %T, not %T", c, outcome, result)
	}
	return result, nil
}

// Ask asks a ledger.
func Ask[A any](ctx context.Context, l Ledger, q command.QueryOf[A], b Blocking) (answer A, index uint64, err error) {
	q.Block(b)
	got, index, err := l.Ask(ctx, q)
	if err != nil {
		return answer, index, err
	}
	answer, ok := got.(A)
	if !ok {
		return answer, index, fmt.Errorf("%T has the answer %T, not %T", q, got, answer)
	}
	return answer, index, nil
}

// DeregisterVolume removes a volume, in as many commands as it takes. Errors: ErrVolumeNotFound; ErrVolumeInUse while
// it is claimed. With force the claims are deleted, wherever the volume is mounted, and returned.
func DeregisterVolume(ctx context.Context, l Ledger, ref claim.VolumeRef, force bool,
) (command.DeregisterVolumeResult, error) {
	var left []claim.Claim
	for {
		result, err := Apply(ctx, l, &command.DeregisterVolume{Ref: ref, Force: force})
		left = append(left, result.LeftBehind...)
		if err != nil || !result.More {
			result.LeftBehind = left
			return result, err
		}
	}
}

// SetNodeStatus records whether a node is heard from, in as many commands as it takes. With down, because an operator
// vouches for it (by) or the node's time is up, all its workloads are ended and its claims become node-detached.
// Errors: ErrNodeNotFound, ErrInvalid.
func SetNodeStatus(ctx context.Context, l Ledger, name string, status claim.NodeStatus, by string,
) (command.SetNodeStatusResult, error) {
	var all command.SetNodeStatusResult
	for {
		result, err := Apply(ctx, l, &command.SetNodeStatus{
			Name: name, Status: status, By: by, Continues: all.Node.StatusIndex, After: all.Next,
		})
		result.Ended, result.Freed = append(all.Ended, result.Ended...), append(all.Freed, result.Freed...)
		if err != nil || !result.More {
			return result, err
		}
		all = result
	}
}

// ExpireACLTokens removes the expired tokens, and returns them.
func ExpireACLTokens(ctx context.Context, l Ledger) (expired []acl.Token, err error) {
	for {
		result, err := Apply(ctx, l, &command.ExpireACLTokens{})
		expired = append(expired, result.Deleted...)
		if err != nil || !result.More {
			return expired, err
		}
	}
}

// WithCall names the call that the commands applied with the context belong to. If the call is repeated under the
// same name, commands that were applied before are answered with the same result and change nothing. The name is
// an id that nobody can guess, and ctx is for one attempt.
func WithCall(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, callKey{}, &call{name: name, made: map[[sha256.Size]byte]uint64{}})
}

type callKey struct{}

// call is one attempt at a call.
type call struct {
	name string
	mu   sync.Mutex
	made map[[sha256.Size]byte]uint64 // count by fingerprint
}

// SetKey gives a command that has none the key under which it may be repeated. Within a call it is derived from the
// call's name, the command, and how often the call has made this command: if a repeated call makes other commands,
// they are new ones. Outside of a call the key is random. The error is that of a command that cannot be encoded.
func SetKey(ctx context.Context, c command.Command) error {
	if command.Key(c) != "" {
		return nil
	}
	of, ok := ctx.Value(callKey{}).(*call)
	if !ok {
		command.SetKey(c, rand.Text())
		return nil
	}
	sum, err := command.Fingerprint(c)
	if err != nil {
		return err
	}
	what := [sha256.Size]byte(sum)
	of.mu.Lock()
	times := of.made[what]
	of.made[what]++
	of.mu.Unlock()
	key := sha256.Sum256(append(binary.BigEndian.AppendUint64(what[:], times), of.name...))
	command.SetKey(c, base32.StdEncoding.EncodeToString(key[:])[:26])
	return nil
}
