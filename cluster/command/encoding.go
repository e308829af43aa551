package command

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"

	jsonv2 "github.com/go-json-experiment/json"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// MaxSize bounds an encoded command, in bytes. A bigger one would not fit into one transaction of the ledger.
const MaxSize = 192 << 10

// Encode encodes a command as a log entry: one byte of level, one of kind, then JSON.
func Encode(c Command) ([]byte, error) {
	kind := kindOf(c)
	if kind == 0 {
		return nil, fmt.Errorf("encode %T: it is not in the registry of commands", c)
	}
	body, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", c, err)
	}
	if len(body)+2 > MaxSize {
		return nil, fmt.Errorf("encode %T: %w: %d bytes, at most %d", c, ErrTooLarge, len(body)+2, MaxSize)
	}
	return append([]byte{Level, byte(kind)}, body...), nil
}

// Fingerprint identifies a command by its kind and its encoded arguments (SHA-256), whatever its time stamp.
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

// Decode decodes a log entry, which may be any bytes. The error is ErrUnknownCommand or ErrMalformed.
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
	return c, nil
}

// decodeStrictly decodes one JSON value, and refuses unknown fields and trailing data.
func decodeStrictly(data []byte, into any) error {
	return jsonv2.Unmarshal(data, into, jsonv1.DefaultOptionsV1(), jsonv2.RejectUnknownMembers(true))
}

// outcome is the result of a command or a query as it is sent between agents.
type outcome struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  *failure        `json:"error,omitempty"`
}

// EncodeOutcome encodes the outcome of a command for another agent. errors.Is and errors.As give the same answers
// for the error that DecodeOutcome returns, for errors of this package, cluster/claim and cluster/acl.
func EncodeOutcome(result any, err error) ([]byte, error) {
	if err != nil {
		return json.Marshal(outcome{Error: failureOf(err)})
	}
	body, err := json.Marshal(result)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", result, err)
	}
	// json.Marshal would validate the encoded result a second time.
	return slices.Concat([]byte(`{"result":`), body, []byte("}")), nil
}

// DecodeOutcome decodes the outcome of c, which may be any bytes. The error is the command's, or ErrMalformed.
func DecodeOutcome(c Command, data []byte) (result any, err error) {
	result, refused, err := kinds[kindOf(c)].result(data)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: outcome of %T: %w", ErrMalformed, c, err)
	case refused != nil:
		return nil, refused.err()
	default:
		return result, nil
	}
}
