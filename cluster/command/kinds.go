package command

import (
	"fmt"

	jsonv2 "github.com/go-json-experiment/json"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// Level is the newest level of commands that this program knows. A level is a set of
// kinds, and of fields of older kinds, that came with one release: level 1 has the kinds
// 1 to 13, level 2 what a cluster of several hosts needs.
//
// An entry's first byte is its level. So a server that does not know a level stops there
// (ErrUnknownCommand) and never takes an entry for a malformed one because of a field that
// is new to it.
const Level = 2

// LevelOf is the level that a server must know to take the command as it is filled in.
func LevelOf(c Command) int {
	level := kinds[c.kind()].level
	if c.key() != "" {
		level = max(level, 2)
	}
	if newer, ok := c.(interface{ level() int }); ok {
		level = max(level, newer.level())
	}
	return level
}

// level of the fields that came after the kind itself.
func (c *RegisterVolume) level() int {
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

func (c *EndWorkload) level() int {
	if c.Node != "" || c.Run != 0 || c.RunID != "" {
		return 2
	}
	return 1
}

func (c *PutNode) level() int {
	n := &c.Node
	if n.SecretHash != "" || n.Status != "" || !n.StatusAt.IsZero() || n.StatusIndex != 0 || n.Ineligible || n.Drain != nil {
		return 2
	}
	return 1
}

func (c *DeleteNode) level() int {
	if c.IfUnused || c.IfDown != 0 {
		return 2
	}
	return 1
}

// kinds is what is known of each kind: its level, its command and its result.
var kinds = map[kind]row{
	kindRegisterVolume:    rowOf[RegisterVolume, RegisterVolumeResult](1),
	kindDeregisterVolume:  rowOf[DeregisterVolume, DeregisterVolumeResult](1),
	kindStartWorkload:     rowOf[StartWorkload, StartWorkloadResult](1),
	kindEndWorkload:       rowOf[EndWorkload, EndWorkloadResult](1),
	kindAdvanceClaims:     rowOf[AdvanceClaims, AdvanceClaimsResult](1),
	kindPutNode:           rowOf[PutNode, PutNodeResult](1),
	kindDeleteNode:        rowOf[DeleteNode, DeleteNodeResult](1),
	kindDeleteDrivers:     rowOf[DeleteDrivers, DeleteDriversResult](1),
	kindDeleteWorkloads:   rowOf[DeleteWorkloads, DeleteWorkloadsResult](1),
	kindIdentify:          rowOf[Identify, IdentifyResult](1),
	kindPutToken:          rowOf[PutToken, PutTokenResult](1),
	kindDeleteTokens:      rowOf[DeleteTokens, DeleteTokensResult](1),
	kindPutSigningKey:     rowOf[PutSigningKey, PutSigningKeyResult](1),
	kindAwaitWorkload:     rowOf[AwaitWorkload, AwaitWorkloadResult](2),
	kindSetNodeStatus:     rowOf[SetNodeStatus, SetNodeStatusResult](2),
	kindSetNodeDuty:       rowOf[SetNodeDuty, SetNodeDutyResult](2),
	kindPutLiveness:       rowOf[PutLiveness, PutLivenessResult](2),
	kindSetAutopilot:      rowOf[SetAutopilot, SetAutopilotResult](2),
	kindBootstrapACL:      rowOf[BootstrapACL, BootstrapACLResult](2),
	kindPutACLPolicies:    rowOf[PutACLPolicies, PutACLPoliciesResult](2),
	kindDeleteACLPolicies: rowOf[DeleteACLPolicies, DeleteACLPoliciesResult](2),
	kindPutACLRoles:       rowOf[PutACLRoles, PutACLRolesResult](2),
	kindDeleteACLRoles:    rowOf[DeleteACLRoles, DeleteACLRolesResult](2),
	kindPutACLTokens:      rowOf[PutACLTokens, PutACLTokensResult](2),
	kindDeleteACLTokens:   rowOf[DeleteACLTokens, DeleteACLTokensResult](2),
	kindExpireACLTokens:   rowOf[ExpireACLTokens, ExpireACLTokensResult](2),
	kindPutSecretsKey:     rowOf[PutSecretsKey, PutSecretsKeyResult](2),
	kindResealVolume:      rowOf[ResealVolume, ResealVolumeResult](2),
}

type row struct {
	level  int
	empty  func() Command
	result func(outcome []byte) (any, *failure, error)
}

// rowOf is the row of a command C with the result R.
func rowOf[C, R any, P interface {
	*C
	Command
}](level int) row {
	return row{level, func() Command { return P(new(C)) }, decodedOutcome[R]}
}

// decoded reads an R that was encoded as JSON. Fields that a newer program added are passed over.
func decoded[R any](data []byte) (any, error) {
	var r R
	if err := jsonv2.Unmarshal(data, &r, jsonv1.DefaultOptionsV1()); err != nil {
		return nil, fmt.Errorf("read a %T: %w", r, err)
	}
	return r, nil
}

// decodedOutcome reads the outcome of a command whose result is an R, at once: an R that is read
// apart from what is round it is looked at twice.
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
