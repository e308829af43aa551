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

// Ledger applies commands: cluster/state implements it. An error refuses the command and leaves the ledger as it was.
type Ledger interface {
	RegisterVolume(*RegisterVolume) (RegisterVolumeResult, error)
	DeregisterVolume(*DeregisterVolume) (DeregisterVolumeResult, error)
	StartWorkload(*StartWorkload) (StartWorkloadResult, error)
	EndWorkload(*EndWorkload) (EndWorkloadResult, error)
	AdvanceClaims(*AdvanceClaims) (AdvanceClaimsResult, error)
	PutNode(*PutNode) (PutNodeResult, error)
	DeleteNode(*DeleteNode) (DeleteNodeResult, error)
	DeleteDrivers(*DeleteDrivers) (DeleteDriversResult, error)
	DeleteWorkloads(*DeleteWorkloads) (DeleteWorkloadsResult, error)
	Identify(*Identify) (claim.Cluster, error)
	PutToken(*PutToken) (PutTokenResult, error)
	DeleteTokens(*DeleteTokens) (DeleteTokensResult, error)
	PutSigningKey(*PutSigningKey) (claim.SigningKey, error)
	AwaitWorkload(*AwaitWorkload) (AwaitWorkloadResult, error)
	SetNodeStatus(*SetNodeStatus) (SetNodeStatusResult, error)
	SetNodeDuty(*SetNodeDuty) (claim.Node, error)
	PutLiveness(*PutLiveness) (claim.Liveness, error)
	SetAutopilot(*SetAutopilot) (claim.Autopilot, error)
	BootstrapACL(*BootstrapACL) (acl.Token, error)
	PutACLPolicies(*PutACLPolicies) ([]acl.Policy, error)
	DeleteACLPolicies(*DeleteACLPolicies) ([]string, error)
	PutACLRoles(*PutACLRoles) ([]acl.Role, error)
	DeleteACLRoles(*DeleteACLRoles) ([]string, error)
	PutACLTokens(*PutACLTokens) ([]acl.Token, error)
	DeleteACLTokens(*DeleteACLTokens) ([]acl.Token, error)
	ExpireACLTokens(*ExpireACLTokens) (ExpireACLTokensResult, error)
	PutSecretsKey(*PutSecretsKey) (claim.SecretsKeys, error)
	ResealVolume(*ResealVolume) (claim.Volume, error)
	PutSnapshot(*PutSnapshot) (PutSnapshotResult, error)
	DeleteSnapshot(*DeleteSnapshot) ([]claim.SnapshotRef, error)
	RotateSigningKey(*RotateSigningKey) (claim.KeyRotation, error)
	AdvanceKeyRotation(*AdvanceKeyRotation) (claim.KeyRotation, error)
	TakeMark(*TakeMark) (claim.Mark, error)
	EndMark(*EndMark) (claim.Mark, error)
	IntendAttach(*IntendAttach) (claim.Claim, error)
}

// kinds is the registry of commands. An entry has the number that stands for the command in the log, the type of its
// result, and what applies it. A number is never used again.
var kinds = map[kind]row{
	1:  rowOf(Ledger.RegisterVolume),
	2:  rowOf(Ledger.DeregisterVolume),
	3:  rowOf(Ledger.StartWorkload),
	4:  rowOf(Ledger.EndWorkload),
	5:  rowOf(Ledger.AdvanceClaims),
	6:  rowOf(Ledger.PutNode),
	7:  rowOf(Ledger.DeleteNode),
	8:  rowOf(Ledger.DeleteDrivers),
	9:  rowOf(Ledger.DeleteWorkloads),
	10: rowOf(Ledger.Identify),
	11: rowOf(Ledger.PutToken),
	12: rowOf(Ledger.DeleteTokens),
	13: rowOf(Ledger.PutSigningKey),
	14: rowOf(Ledger.AwaitWorkload),
	15: rowOf(Ledger.SetNodeStatus),
	16: rowOf(Ledger.SetNodeDuty),
	17: rowOf(Ledger.PutLiveness),
	18: rowOf(Ledger.SetAutopilot),
	20: rowOf(Ledger.BootstrapACL),
	21: rowOf(Ledger.PutACLPolicies),
	22: rowOf(Ledger.DeleteACLPolicies),
	23: rowOf(Ledger.PutACLRoles),
	24: rowOf(Ledger.DeleteACLRoles),
	25: rowOf(Ledger.PutACLTokens),
	26: rowOf(Ledger.DeleteACLTokens),
	27: rowOf(Ledger.ExpireACLTokens),
	28: rowOf(Ledger.PutSecretsKey),
	29: rowOf(Ledger.ResealVolume),
	30: rowOf(Ledger.PutSnapshot),
	31: rowOf(Ledger.DeleteSnapshot),
	32: rowOf(Ledger.RotateSigningKey),
	33: rowOf(Ledger.AdvanceKeyRotation),
	34: rowOf(Ledger.TakeMark),
	35: rowOf(Ledger.EndMark),
	36: rowOf(Ledger.IntendAttach),
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
	Of[R]
}](apply func(Ledger, P) (R, error)) row {
	return row{
		empty:   func() Command { return P(new(C)) },
		outcome: decodeReply[R],
		apply: func(l Ledger, c Command) (any, error) {
			result, err := apply(l, c.(P))
			if err != nil {
				return nil, err
			}
			return result, nil
		},
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
