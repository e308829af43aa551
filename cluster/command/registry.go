package command

import (
	"fmt"
	"reflect"
	"slices"

	jsonv2 "github.com/go-json-experiment/json"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// Level is the newest level of commands that this program knows. A level is the set of kinds, and of fields of
// older kinds, that came with one release: level 1 has the kinds 1 to 13; level 2 has what a cluster of several
// hosts needs; level 3 has the namespaces that a node is bound to, volumes that are refused because another one has
// their external id, mutable parameters of volumes, who forced a release, and drivers whose controller is another
// process than their node service; level 4 has the names of snapshots; level 5 has the rotation of the signing key.
//
// The first byte of an entry is its level. So a server that does not know a level stops there (ErrUnknownCommand),
// and never mistakes an entry for malformed because of a new field.
const Level = 5

// LevelOf returns the level that a server must know to apply the command, given the fields that are set.
func LevelOf(c Command) int {
	level := kinds[kindOf(c)].level
	if c.key() != "" || c.term() != 0 {
		level = max(level, 2)
	}
	if newer, ok := c.(interface{ level() int }); ok {
		level = max(level, newer.level())
	}
	return level
}

// level returns the level of the fields that are newer than the kind itself.
func (c *RegisterVolume) level() int {
	if c.Distinct || len(c.Volume.MutableParameters) > 0 {
		return 3
	}
	if c.Volume.SecretsKey != "" {
		return 2
	}
	return 1
}

func (c *PutSigningKey) level() int {
	if c.Key.SecretsKey != "" || len(c.IfSealed) > 0 {
		return 2
	}
	return 1
}

func (c *StartWorkload) level() int {
	if c.RunID != "" {
		return 2
	}
	return 1
}

func (c *AdvanceClaims) level() int {
	if slices.ContainsFunc(c.Items, func(a Advance) bool { return a.ForcedBy != "" }) {
		return 3
	}
	return 1
}

func (c *EndWorkload) level() int {
	if c.Node != "" || c.Run != 0 || c.RunID != "" {
		return 2
	}
	return 1
}

func (c *PutNode) level() int {
	n := &c.Node
	if n.Namespaces != nil {
		return 3
	}
	for _, d := range n.Drivers {
		if d.ControllerApart != nil {
			return 3
		}
	}
	if n.SecretHash != "" || n.Status != "" || !n.StatusAt.IsZero() || n.StatusIndex != 0 || n.Ineligible ||
		n.Drain != nil {
		return 2
	}
	return 1
}

func (c *SetNodeDuty) level() int {
	if c.Namespaces != nil {
		return 3
	}
	return 2
}

func (c *DeleteNode) level() int {
	if c.IfUnused || c.IfDown != 0 {
		return 2
	}
	return 1
}

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

// kinds is the registry of commands. An entry has the number that stands for the command in the log, the level
// that it came with, the type of its result, and what applies it. A number is never used again.
var kinds = map[kind]row{
	1:  rowOf[RegisterVolumeResult](1, Ledger.RegisterVolume),
	2:  rowOf[DeregisterVolumeResult](1, Ledger.DeregisterVolume),
	3:  rowOf[StartWorkloadResult](1, Ledger.StartWorkload),
	4:  rowOf[EndWorkloadResult](1, Ledger.EndWorkload),
	5:  rowOf[AdvanceClaimsResult](1, Ledger.AdvanceClaims),
	6:  rowOf[PutNodeResult](1, Ledger.PutNode),
	7:  rowOf[DeleteNodeResult](1, Ledger.DeleteNode),
	8:  rowOf[DeleteDriversResult](1, Ledger.DeleteDrivers),
	9:  rowOf[DeleteWorkloadsResult](1, Ledger.DeleteWorkloads),
	10: rowOf[IdentifyResult](1, Ledger.Identify),
	11: rowOf[PutTokenResult](1, Ledger.PutToken),
	12: rowOf[DeleteTokensResult](1, Ledger.DeleteTokens),
	13: rowOf[PutSigningKeyResult](1, Ledger.PutSigningKey),
	14: rowOf[AwaitWorkloadResult](2, Ledger.AwaitWorkload),
	15: rowOf[SetNodeStatusResult](2, Ledger.SetNodeStatus),
	16: rowOf[SetNodeDutyResult](2, Ledger.SetNodeDuty),
	17: rowOf[PutLivenessResult](2, Ledger.PutLiveness),
	18: rowOf[SetAutopilotResult](2, Ledger.SetAutopilot),
	20: rowOf[BootstrapACLResult](2, Ledger.BootstrapACL),
	21: rowOf[PutACLPoliciesResult](2, Ledger.PutACLPolicies),
	22: rowOf[DeleteACLPoliciesResult](2, Ledger.DeleteACLPolicies),
	23: rowOf[PutACLRolesResult](2, Ledger.PutACLRoles),
	24: rowOf[DeleteACLRolesResult](2, Ledger.DeleteACLRoles),
	25: rowOf[PutACLTokensResult](2, Ledger.PutACLTokens),
	26: rowOf[DeleteACLTokensResult](2, Ledger.DeleteACLTokens),
	27: rowOf[ExpireACLTokensResult](2, Ledger.ExpireACLTokens),
	28: rowOf[PutSecretsKeyResult](2, Ledger.PutSecretsKey),
	29: rowOf[ResealVolumeResult](2, Ledger.ResealVolume),
	30: rowOf[PutSnapshotResult](4, Ledger.PutSnapshot),
	31: rowOf[DeleteSnapshotResult](4, Ledger.DeleteSnapshot),
	32: rowOf[RotateSigningKeyResult](5, Ledger.RotateSigningKey),
	33: rowOf[RotateSigningKeyResult](5, Ledger.AdvanceKeyRotation),
}

type kind byte

type row struct {
	level  int
	empty  func() Command
	result func(outcome []byte) (any, *failure, error)
	apply  func(Ledger, Command) (any, error)
}

// rowOf is the entry of a command C with the result R.
func rowOf[R, C any, P interface {
	*C
	Command
}](level int, apply func(Ledger, P) (any, error)) row {
	return row{
		level:  level,
		empty:  func() Command { return P(new(C)) },
		result: decodedOutcome[R],
		apply:  func(l Ledger, c Command) (any, error) { return apply(l, c.(P)) },
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

// decoded decodes an R from JSON. Fields that a newer program added are ignored.
func decoded[R any](data []byte) (any, error) {
	var r R
	if err := jsonv2.Unmarshal(data, &r, jsonv1.DefaultOptionsV1()); err != nil {
		return nil, fmt.Errorf("read a %T: %w", r, err)
	}
	return r, nil
}

// decodedOutcome decodes the outcome of a command with the result R in one pass: decoding the result from a
// json.RawMessage would parse it twice.
func decodedOutcome[R any](data []byte) (any, *failure, error) {
	var o struct {
		Result *R       `json:"result"`
		Error  *failure `json:"error"`
	}
	err := jsonv2.Unmarshal(data, &o, jsonv1.DefaultOptionsV1())
	switch {
	case err != nil || o.Error != nil:
		return nil, o.Error, err
	case o.Result == nil:
		return nil, nil, fmt.Errorf("there is no %T", *new(R))
	default:
		return *o.Result, nil, nil
	}
}
