package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

// Commands change the ledger, on this server or another: Node and Client embed them.
type Commands struct{ to applier }

// applier sends a command to the leader and returns its result.
type applier interface {
	apply(ctx context.Context, c command.Command) (any, error)
}

// RegisterVolume inserts a volume or updates its definition. Errors: ErrInvalid; ErrDuplicate if another
// volume has its driver and external id; ErrVolumeInUse if the new definition does not fit existing claims.
func (c Commands) RegisterVolume(ctx context.Context, v claim.Volume) (command.RegisterVolumeResult, error) {
	return apply[command.RegisterVolumeResult](ctx, c.to, &command.RegisterVolume{Volume: v})
}

// DeregisterVolume removes a volume. Errors: ErrVolumeNotFound; ErrVolumeInUse while it is claimed. With force the
// claims are deleted, wherever the volume is mounted, and returned.
func (c Commands) DeregisterVolume(ctx context.Context, ref claim.VolumeRef,
	force bool,
) (command.DeregisterVolumeResult, error) {
	var left []claim.Claim
	for {
		result, err := apply[command.DeregisterVolumeResult](ctx, c.to, &command.DeregisterVolume{Ref: ref, Force: force})
		left = append(left, result.LeftBehind...)
		if err != nil || !result.More {
			result.LeftBehind = left
			return result, err
		}
	}
}

// StartWorkload records that a workload runs on a node, takes all the claims that it wants, or none, and records
// the tokens that Consul will be asked for. It may be repeated with the same arguments. run.Index is not used.
// Claims need Volume, Mode, AccessMode and AttachmentMode, tokens need ID, Service and Consul; the other fields
// are set. Tokens of earlier runs are kept until they are deleted, and their ids cannot be used again. Errors:
// ErrHeld, ErrModes, ErrReadOnly, ErrUnsupported, ErrVolumeNotFound; ErrIneligible if the node takes no workloads;
// ErrConflict if the workload runs with other arguments or waits on another node, if the run was ended, or if a
// token's id is taken; ErrInvalid.
func (c Commands) StartWorkload(ctx context.Context, run claim.Run, claims []claim.Claim,
	tokens ...claim.Token,
) (command.StartWorkloadResult, error) {
	return apply[command.StartWorkloadResult](ctx, c.to, &command.StartWorkload{
		Ref: run.Ref, Node: run.Node,
		RunID: run.ID, Claims: claims, Tokens: tokens,
	})
}

// EndRun records that a workload has ended and begins to release its claims. It may be repeated; an unknown workload is
// no error. A run on another node than run's, or a later one, is kept, and Found is then false; empty fields of run
// select the present one. If the run has an id, a start of it that arrives later is refused.
func (c Commands) EndRun(ctx context.Context, run claim.Run) (command.EndWorkloadResult, error) {
	return apply[command.EndWorkloadResult](ctx, c.to, &command.EndWorkload{
		Ref: run.Ref, Node: run.Node,
		Run: run.Index, RunID: run.ID,
	})
}

// AdvanceClaims checkpoints the release of claims, all items or none, at most command.MaxItems. by is the operator
// who vouches that the node of the claims is down; empty if nobody had to. Claims that were freed before are
// skipped. Errors: ErrBackwards, ErrInvalid.
func (c Commands) AdvanceClaims(ctx context.Context, by string,
	items ...command.Advance,
) (command.AdvanceClaimsResult, error) {
	return apply[command.AdvanceClaimsResult](ctx, c.to, &command.AdvanceClaims{Items: items, By: by})
}

// PutNode records a node's report about itself and its drivers. A node that was down or disconnected becomes
// ready. Errors: ErrNodeSecret if the node is known with another secret; ErrInvalid.
func (c Commands) PutNode(ctx context.Context, node claim.Node) (command.PutNodeResult, error) {
	return apply[command.PutNodeResult](ctx, c.to, &command.PutNode{Node: node})
}

// DeleteNode removes a node's record. An unknown node is no error. Errors: ErrNodeInUse while the node has claims,
// or workloads that run or wait there; SetNodeStatus with down releases them.
func (c Commands) DeleteNode(ctx context.Context, name string) (command.DeleteNodeResult, error) {
	return apply[command.DeleteNodeResult](ctx, c.to, &command.DeleteNode{Name: name})
}

// DeleteDownNode is DeleteNode for a node that was down when it was read: if it has come back since, it is kept
// and Found is false.
func (c Commands) DeleteDownNode(ctx context.Context, read claim.Node) (command.DeleteNodeResult, error) {
	return apply[command.DeleteNodeResult](ctx, c.to, &command.DeleteNode{Name: read.Name, IfDown: read.StatusIndex})
}

// DeleteDrivers removes those of the drivers (at most command.MaxItems) that no node has, no volume names, and
// that have not changed since unusedBefore.
func (c Commands) DeleteDrivers(ctx context.Context, unusedBefore time.Time,
	ids ...string,
) (command.DeleteDriversResult, error) {
	return apply[command.DeleteDriversResult](ctx, c.to, &command.DeleteDrivers{IDs: ids, IfUnusedBefore: unusedBefore})
}

// DeleteWorkloads removes workloads that ended before a time and have no claims left, the oldest command.MaxItems
// of them.
func (c Commands) DeleteWorkloads(ctx context.Context, endedBefore time.Time) (command.DeleteWorkloadsResult, error) {
	return apply[command.DeleteWorkloadsResult](ctx, c.to, &command.DeleteWorkloads{EndedBefore: endedBefore})
}

// PutToken records that Consul will be asked for a token or, for an existing record, its accessor and expiry. It
// may be repeated. Errors: ErrNotRunning if the token is new and its workload does not run on its node;
// ErrConflict if the id is another token's; ErrInvalid.
func (c Commands) PutToken(ctx context.Context, t claim.Token) (command.PutTokenResult, error) {
	return apply[command.PutTokenResult](ctx, c.to, &command.PutToken{Token: t})
}

// DeleteTokens removes the records of tokens that Consul no longer has, at most command.MaxItems. Unknown ids are
// ignored.
func (c Commands) DeleteTokens(ctx context.Context, ids ...string) (command.DeleteTokensResult, error) {
	return apply[command.DeleteTokensResult](ctx, c.to, &command.DeleteTokens{IDs: ids})
}

// PutSigningKey sets the cluster's signing key and returns the stored key, which is the first one that was set.
// Errors: ErrInvalid.
func (c Commands) PutSigningKey(ctx context.Context, k claim.SigningKey) (claim.SigningKey, error) {
	return apply[claim.SigningKey](ctx, c.to, &command.PutSigningKey{Key: k})
}

// RotateSigningKey begins a rotation of the signing key, unless one is under way, and returns the present one. Errors:
// ErrConflict if there is no key yet; ErrInvalid.
func (c Commands) RotateSigningKey(ctx context.Context, next claim.SigningKey) (claim.KeyRotation, error) {
	return apply[claim.KeyRotation](ctx, c.to, &command.RotateSigningKey{Next: next})
}

// AdvanceKeyRotation ends the present phase of a rotation. Errors: ErrConflict if it has ended.
func (c Commands) AdvanceKeyRotation(ctx context.Context, is claim.KeyRotation) (claim.KeyRotation, error) {
	return apply[claim.KeyRotation](ctx, c.to,
		&command.AdvanceKeyRotation{Key: is.Key.ID, Phase: is.Phase})
}

// AwaitWorkload records that a workload waits on a node for others to end, and returns those that have not. It may
// be repeated; StartWorkload or EndRun ends the wait. Errors: ErrCycle; ErrIneligible if the node takes no
// workloads; ErrConflict if the workload runs, waits on another node, or the run was ended; ErrInvalid.
func (c Commands) AwaitWorkload(ctx context.Context, run claim.Run,
	after []claim.WorkloadRef,
) (command.AwaitWorkloadResult, error) {
	return apply[command.AwaitWorkloadResult](ctx, c.to, &command.AwaitWorkload{
		Ref: run.Ref, Node: run.Node,
		RunID: run.ID, After: after,
	})
}

// SetNodeStatus records whether a node is heard from. With down, because an operator vouches for it (by) or the
// node's time is up, all its workloads are ended and its claims become node-detached. Errors: ErrNodeNotFound,
// ErrInvalid.
func (c Commands) SetNodeStatus(ctx context.Context, name string, status claim.NodeStatus,
	by string,
) (command.SetNodeStatusResult, error) {
	var all command.SetNodeStatusResult
	next := command.SetNodeStatus{Name: name, Status: status, By: by}
	for {
		// A command must not be changed once it was passed to apply.
		one := next
		result, err := apply[command.SetNodeStatusResult](ctx, c.to, &one)
		result.Ended, result.Freed = append(all.Ended, result.Ended...), append(all.Freed, result.Freed...)
		if err != nil || !result.More {
			return result, err
		}
		all, next.Continues, next.After = result, result.Node.StatusIndex, result.Next
	}
}

// SetNodeDuty records an operator's settings for a node. Errors: ErrNodeNotFound.
func (c Commands) SetNodeDuty(ctx context.Context, duty command.SetNodeDuty) (claim.Node, error) {
	return apply[claim.Node](ctx, c.to, &duty)
}

// PutLiveness records the lease that the leader promises to nodes from now on, and returns the previous
// promise.
func (c Commands) PutLiveness(ctx context.Context, l claim.Liveness) (claim.Liveness, error) {
	return apply[claim.Liveness](ctx, c.to, &command.PutLiveness{Liveness: l})
}

// BootstrapACL makes the first management token. Errors: *acl.BootstrappedError if it was made before and reset is
// not the index that this error names; ErrInvalid.
func (c Commands) BootstrapACL(ctx context.Context, t acl.Token, reset uint64) (acl.Token, error) {
	return apply[acl.Token](ctx, c.to, &command.BootstrapACL{Token: t, ResetIndex: reset})
}

// PutACLPolicies inserts or replaces policies, all or none, at most command.MaxPolicies, and returns the stored
// ones. Errors: ErrInvalid.
func (c Commands) PutACLPolicies(ctx context.Context, policies ...acl.Policy) ([]acl.Policy, error) {
	return apply[[]acl.Policy](ctx, c.to, &command.PutACLPolicies{Policies: policies})
}

// DeleteACLPolicies removes policies, at most command.MaxItems, and returns the names that existed.
func (c Commands) DeleteACLPolicies(ctx context.Context, names ...string) ([]string, error) {
	return apply[[]string](ctx, c.to, &command.DeleteACLPolicies{Names: names})
}

// PutACLRoles inserts or replaces roles, all or none, at most command.MaxItems, and returns the stored ones.
// Errors: acl.ErrPolicyNotFound, ErrInvalid.
func (c Commands) PutACLRoles(ctx context.Context, roles ...acl.Role) ([]acl.Role, error) {
	return apply[[]acl.Role](ctx, c.to, &command.PutACLRoles{Roles: roles})
}

// DeleteACLRoles removes roles, at most command.MaxItems, and returns the names that existed.
func (c Commands) DeleteACLRoles(ctx context.Context, names ...string) ([]string, error) {
	return apply[[]string](ctx, c.to, &command.DeleteACLRoles{Names: names})
}

// PutACLTokens inserts tokens, or changes the names, policies and roles of existing ones, all or none, at most
// command.MaxItems, and returns the stored ones. Errors: acl.ErrPolicyNotFound, acl.ErrRoleNotFound; ErrConflict
// if a secret is another token's, or if the secret, type or expiry of an existing token differs; ErrInvalid.
func (c Commands) PutACLTokens(ctx context.Context, tokens ...acl.Token) ([]acl.Token, error) {
	return apply[[]acl.Token](ctx, c.to, &command.PutACLTokens{Tokens: tokens})
}

// DeleteACLTokens removes tokens by accessor, at most command.MaxItems, and returns those that existed.
func (c Commands) DeleteACLTokens(ctx context.Context, accessors ...string) ([]acl.Token, error) {
	return apply[[]acl.Token](ctx, c.to, &command.DeleteACLTokens{Accessors: accessors})
}

// ExpireACLTokens removes the expired tokens, and returns them.
func (c Commands) ExpireACLTokens(ctx context.Context) (expired []acl.Token, err error) {
	for {
		result, err := apply[command.ExpireACLTokensResult](ctx, c.to, &command.ExpireACLTokens{})
		expired = append(expired, result.Deleted...)
		if err != nil || !result.More {
			return expired, err
		}
	}
}

// PutSecretsKey records a key that encrypts secrets and, with active, makes it the one that encrypts from now on.
// Errors: ErrInvalid.
func (c Commands) PutSecretsKey(ctx context.Context, id string, active bool) (claim.SecretsKeys, error) {
	return apply[claim.SecretsKeys](ctx, c.to, &command.PutSecretsKey{ID: id, Active: active})
}

// RemoveSecretsKey removes a key with which nothing is encrypted any more. Errors: ErrConflict for the active key.
func (c Commands) RemoveSecretsKey(ctx context.Context, id string) (claim.SecretsKeys, error) {
	return apply[claim.SecretsKeys](ctx, c.to, &command.PutSecretsKey{ID: id, Gone: true})
}

// ResealVolume replaces a volume's encrypted secrets by the same secrets under another key, if the volume has not
// changed since an index. Errors: ErrVolumeNotFound; ErrConflict if it has changed.
func (c Commands) ResealVolume(ctx context.Context, ref claim.VolumeRef, ifModifyIndex uint64, sealed []byte,
	key string,
) (claim.Volume, error) {
	return apply[claim.Volume](ctx, c.to, &command.ResealVolume{
		Ref:           ref,
		IfModifyIndex: ifModifyIndex, SealedSecrets: sealed, KeyID: key,
	})
}

// PutSnapshot records the name of a snapshot that its driver has taken. Errors: ErrSnapshotExists if it is the name of
// another volume's snapshot; ErrInvalid.
func (c Commands) PutSnapshot(ctx context.Context, s claim.Snapshot) (command.PutSnapshotResult, error) {
	return apply[command.PutSnapshotResult](ctx, c.to, &command.PutSnapshot{Snapshot: s})
}

// DeleteSnapshot removes the names of a driver's snapshot, and returns them.
func (c Commands) DeleteSnapshot(ctx context.Context, driver, id string) ([]claim.SnapshotRef, error) {
	return apply[[]claim.SnapshotRef](ctx, c.to, &command.DeleteSnapshot{PluginID: driver, ID: id})
}

// ResealSigningKey replaces the encrypted signing key by the same key under another secrets key, if it has not
// changed since it was read. Errors: ErrConflict if it has.
func (c Commands) ResealSigningKey(ctx context.Context, read claim.SigningKey, sealed []byte, key string) error {
	k := read
	k.Sealed, k.SecretsKey = sealed, key
	_, err := apply[claim.SigningKey](ctx, c.to, &command.PutSigningKey{Key: k, IfSealed: read.Sealed})
	return err
}

// apply sends a command to the leader and returns its result with its type.
func apply[R any](ctx context.Context, to applier, c command.Command) (result R, err error) {
	outcome, err := to.apply(ctx, c)
	if err != nil {
		return result, err
	}
	result, ok := outcome.(R)
	if !ok {
		return result, fmt.Errorf("%T has the result %T, not %T", c, outcome, result)
	}
	return result, nil
}
