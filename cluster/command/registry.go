package command

import (
	"fmt"
	"reflect"

	"github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
)

// Level is the newest level of commands that this program knows. A level is the set of kinds, and of fields of older
// kinds, that came with one release.
//
// The first byte of an entry is its level. So a server that does not know a level stops there (ErrUnknownCommand),
// and never mistakes an entry for malformed because of a new field.
const Level = 1

// Ledger applies commands: cluster/state implements it. Each method returns the command's result, or an error
// that refuses the command and leaves the ledger as it was.
type Ledger interface {
	RegisterVolume(*RegisterVolume) (any, error)
	DeregisterVolume(*DeregisterVolume) (any, error)
	StartWorkload(*StartWorkload) (any, error)
	EndWorkload(*EndWorkload) (any, error)
	AdvanceClaims(*AdvanceClaims) (any, error)
	PutNode(*PutNode) (any, error)
	DeleteNode(*DeleteNode) (any, error)
	DeleteDrivers(*DeleteDrivers) (any, error)
	DeleteWorkloads(*DeleteWorkloads) (any, error)
	Identify(*Identify) (any, error)
	PutToken(*PutToken) (any, error)
	DeleteTokens(*DeleteTokens) (any, error)
	PutSigningKey(*PutSigningKey) (any, error)
	AwaitWorkload(*AwaitWorkload) (any, error)
	SetNodeStatus(*SetNodeStatus) (any, error)
	SetNodeDuty(*SetNodeDuty) (any, error)
	PutLiveness(*PutLiveness) (any, error)
	SetAutopilot(*SetAutopilot) (any, error)
	BootstrapACL(*BootstrapACL) (any, error)
	PutACLPolicies(*PutACLPolicies) (any, error)
	DeleteACLPolicies(*DeleteACLPolicies) (any, error)
	PutACLRoles(*PutACLRoles) (any, error)
	DeleteACLRoles(*DeleteACLRoles) (any, error)
	PutACLTokens(*PutACLTokens) (any, error)
	DeleteACLTokens(*DeleteACLTokens) (any, error)
	ExpireACLTokens(*ExpireACLTokens) (any, error)
	PutSecretsKey(*PutSecretsKey) (any, error)
	ResealVolume(*ResealVolume) (any, error)
	PutSnapshot(*PutSnapshot) (any, error)
	DeleteSnapshot(*DeleteSnapshot) (any, error)
	RotateSigningKey(*RotateSigningKey) (any, error)
	AdvanceKeyRotation(*AdvanceKeyRotation) (any, error)
}

// kinds is the registry of commands. An entry has the number that stands for the command in the log, the type of its
// result, and what applies it. A number is never used again.
var kinds = map[kind]row{
	1:  rowOf[RegisterVolumeResult](Ledger.RegisterVolume),
	2:  rowOf[DeregisterVolumeResult](Ledger.DeregisterVolume),
	3:  rowOf[StartWorkloadResult](Ledger.StartWorkload),
	4:  rowOf[EndWorkloadResult](Ledger.EndWorkload),
	5:  rowOf[AdvanceClaimsResult](Ledger.AdvanceClaims),
	6:  rowOf[PutNodeResult](Ledger.PutNode),
	7:  rowOf[DeleteNodeResult](Ledger.DeleteNode),
	8:  rowOf[DeleteDriversResult](Ledger.DeleteDrivers),
	9:  rowOf[DeleteWorkloadsResult](Ledger.DeleteWorkloads),
	10: rowOf[claim.Cluster](Ledger.Identify),
	11: rowOf[PutTokenResult](Ledger.PutToken),
	12: rowOf[DeleteTokensResult](Ledger.DeleteTokens),
	13: rowOf[claim.SigningKey](Ledger.PutSigningKey),
	14: rowOf[AwaitWorkloadResult](Ledger.AwaitWorkload),
	15: rowOf[SetNodeStatusResult](Ledger.SetNodeStatus),
	16: rowOf[claim.Node](Ledger.SetNodeDuty),
	17: rowOf[claim.Liveness](Ledger.PutLiveness),
	18: rowOf[claim.Autopilot](Ledger.SetAutopilot),
	20: rowOf[acl.Token](Ledger.BootstrapACL),
	21: rowOf[[]acl.Policy](Ledger.PutACLPolicies),
	22: rowOf[[]string](Ledger.DeleteACLPolicies),
	23: rowOf[[]acl.Role](Ledger.PutACLRoles),
	24: rowOf[[]string](Ledger.DeleteACLRoles),
	25: rowOf[[]acl.Token](Ledger.PutACLTokens),
	26: rowOf[[]acl.Token](Ledger.DeleteACLTokens),
	27: rowOf[ExpireACLTokensResult](Ledger.ExpireACLTokens),
	28: rowOf[claim.SecretsKeys](Ledger.PutSecretsKey),
	29: rowOf[claim.Volume](Ledger.ResealVolume),
	30: rowOf[PutSnapshotResult](Ledger.PutSnapshot),
	31: rowOf[[]claim.SnapshotRef](Ledger.DeleteSnapshot),
	32: rowOf[claim.KeyRotation](Ledger.RotateSigningKey),
	33: rowOf[claim.KeyRotation](Ledger.AdvanceKeyRotation),
}

type kind byte

type row struct {
	empty   func() Command
	outcome func(data []byte) (result any, index uint64, refused, err error)
	apply   func(Ledger, Command) (any, error)
}

// rowOf is the entry of a command C with the result R.
func rowOf[R, C any, P interface {
	*C
	Command
}](apply func(Ledger, P) (any, error)) row {
	return row{
		empty:   func() Command { return P(new(C)) },
		outcome: decodeReply[R],
		apply:   func(l Ledger, c Command) (any, error) { return apply(l, c.(P)) },
	}
}

var kindsByType = numbersByType(kinds, func(r row) any { return r.empty() })

// kindOf is 0 for a type that is not in the registry.
func kindOf(c Command) kind { return kindsByType[reflect.TypeOf(c)] }

func numbersByType[K comparable, R any](rows map[K]R, empty func(R) any) map[reflect.Type]K {
	numbers := make(map[reflect.Type]K, len(rows))
	for number, r := range rows {
		numbers[reflect.TypeOf(empty(r))] = number
	}
	return numbers
}

// Apply applies a command to a ledger. The error is ErrUnknownCommand if the registry does not have the
// command.
func Apply(l Ledger, c Command) (any, error) {
	known, ok := kinds[kindOf(c)]
	if !ok {
		return nil, fmt.Errorf("%w: %T", ErrUnknownCommand, c)
	}
	return known.apply(l, c)
}
