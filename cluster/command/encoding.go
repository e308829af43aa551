package command

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	jsonv2 "github.com/go-json-experiment/json"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// MaxSize bounds an encoded command, in bytes. What is bigger would not fit into
// one transaction of the ledger.
const MaxSize = 192 << 10

var (
	// ErrUnknownCommand says that the entry was written by a newer program. Whoever
	// meets it in the log must stop, and be upgraded.
	ErrUnknownCommand = errors.New("unknown command in the log (written by a newer version)")
	// ErrMalformed says that the entry is no command of any version.
	ErrMalformed = errors.New("malformed command")
	// ErrTooLarge says that the command is bigger than MaxSize.
	ErrTooLarge = errors.New("command is too large")
)

type kind byte

// The kinds. A number is never used again.
const (
	kindRegisterVolume    kind = 1
	kindDeregisterVolume  kind = 2
	kindStartWorkload     kind = 3
	kindEndWorkload       kind = 4
	kindAdvanceClaims     kind = 5
	kindPutNode           kind = 6
	kindDeleteNode        kind = 7
	kindDeleteDrivers     kind = 8
	kindDeleteWorkloads   kind = 9
	kindIdentify          kind = 10
	kindPutToken          kind = 11
	kindDeleteTokens      kind = 12
	kindPutSigningKey     kind = 13
	kindAwaitWorkload     kind = 14
	kindSetNodeStatus     kind = 15
	kindSetNodeDuty       kind = 16
	kindPutLiveness       kind = 17
	kindSetAutopilot      kind = 18
	kindBootstrapACL      kind = 20
	kindPutACLPolicies    kind = 21
	kindDeleteACLPolicies kind = 22
	kindPutACLRoles       kind = 23
	kindDeleteACLRoles    kind = 24
	kindPutACLTokens      kind = 25
	kindDeleteACLTokens   kind = 26
	kindExpireACLTokens   kind = 27
	kindPutSecretsKey     kind = 28
	kindResealVolume      kind = 29
)

func (*RegisterVolume) kind() kind    { return kindRegisterVolume }
func (*DeregisterVolume) kind() kind  { return kindDeregisterVolume }
func (*StartWorkload) kind() kind     { return kindStartWorkload }
func (*EndWorkload) kind() kind       { return kindEndWorkload }
func (*AdvanceClaims) kind() kind     { return kindAdvanceClaims }
func (*PutNode) kind() kind           { return kindPutNode }
func (*DeleteNode) kind() kind        { return kindDeleteNode }
func (*DeleteDrivers) kind() kind     { return kindDeleteDrivers }
func (*DeleteWorkloads) kind() kind   { return kindDeleteWorkloads }
func (*Identify) kind() kind          { return kindIdentify }
func (*PutToken) kind() kind          { return kindPutToken }
func (*DeleteTokens) kind() kind      { return kindDeleteTokens }
func (*PutSigningKey) kind() kind     { return kindPutSigningKey }
func (*AwaitWorkload) kind() kind     { return kindAwaitWorkload }
func (*SetNodeStatus) kind() kind     { return kindSetNodeStatus }
func (*SetNodeDuty) kind() kind       { return kindSetNodeDuty }
func (*PutLiveness) kind() kind       { return kindPutLiveness }
func (*SetAutopilot) kind() kind      { return kindSetAutopilot }
func (*BootstrapACL) kind() kind      { return kindBootstrapACL }
func (*PutACLPolicies) kind() kind    { return kindPutACLPolicies }
func (*DeleteACLPolicies) kind() kind { return kindDeleteACLPolicies }
func (*PutACLRoles) kind() kind       { return kindPutACLRoles }
func (*DeleteACLRoles) kind() kind    { return kindDeleteACLRoles }
func (*PutACLTokens) kind() kind      { return kindPutACLTokens }
func (*DeleteACLTokens) kind() kind   { return kindDeleteACLTokens }
func (*ExpireACLTokens) kind() kind   { return kindExpireACLTokens }
func (*PutSecretsKey) kind() kind     { return kindPutSecretsKey }
func (*ResealVolume) kind() kind      { return kindResealVolume }

// Encode writes a command down as a log entry: one byte of level, one of kind, then JSON.
func Encode(c Command) ([]byte, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", c, err)
	}
	if len(body)+2 > MaxSize {
		return nil, fmt.Errorf("encode %T: %w: %d bytes, at most %d", c, ErrTooLarge, len(body)+2, MaxSize)
	}
	return append([]byte{byte(LevelOf(c)), byte(c.kind())}, body...), nil
}

// Fingerprint tells a command from others, whenever it is stamped: the SHA-256 of its kind and its
// arguments, as they were written down.
func Fingerprint(c Command) ([]byte, error) {
	if sum := c.sum(); sum != nil {
		return sum, nil
	}
	entry, err := Encode(c)
	if err != nil {
		return nil, err
	}
	return fingerprint(entry), nil
}

func fingerprint(entry []byte) []byte {
	body := entry[2:]
	if rest, stamped := bytes.CutPrefix(body, []byte(`{"at":"`)); stamped {
		_, body, _ = bytes.Cut(rest, []byte(`"`))
	}
	hash := sha256.New()
	hash.Write(entry[1:2])
	hash.Write(body)
	return hash.Sum(nil)
}

// Decode reads a log entry. Any bytes may be given. The error is
// ErrUnknownCommand or ErrMalformed.
func Decode(entry []byte) (Command, error) {
	if len(entry) < 2 {
		return nil, fmt.Errorf("%w: %d bytes", ErrMalformed, len(entry))
	}
	if entry[0] == 0 || entry[1] == 0 {
		return nil, fmt.Errorf("%w: level %d, kind %d", ErrMalformed, entry[0], entry[1])
	}
	if entry[0] > Level {
		return nil, fmt.Errorf("%w: level %d, this program knows up to %d", ErrUnknownCommand, entry[0], Level)
	}
	known, ok := kinds[kind(entry[1])]
	if !ok {
		return nil, fmt.Errorf("%w: kind %d", ErrUnknownCommand, entry[1])
	}
	c := known.empty()
	if err := decodeStrictly(entry[2:], c); err != nil {
		return nil, fmt.Errorf("%w: %T: %w", ErrMalformed, c, err)
	}
	if c.key() != "" {
		c.setSum(fingerprint(entry))
	}
	if level := LevelOf(c); level > int(entry[0]) {
		// A server that knows no more than the entry's level refuses it so too.
		return nil, fmt.Errorf("%w: %T of level %d in an entry of level %d", ErrMalformed, c, level, entry[0])
	}
	return c, nil
}

// decodeStrictly reads one JSON value, and refuses fields that it does not know and what
// comes after it.
func decodeStrictly(data []byte, into any) error {
	return jsonv2.Unmarshal(data, into, jsonv1.DefaultOptionsV1(), jsonv2.RejectUnknownMembers(true))
}
