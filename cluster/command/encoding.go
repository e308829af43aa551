package command

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"reflect"
	"time"

	"github.com/pannier/pannier/cluster/codec"
)

// MaxSize bounds an encoded command, in bytes. A bigger one would not fit into one transaction of the ledger.
const MaxSize = 192 << 10

// headSize is the size of what precedes a command's fields in an entry: a byte of level, a byte of kind, and the time
// stamp in nanoseconds since 1970 (big endian; 0: none).
const headSize = 2 + 8

// Encode encodes a command as a log entry.
func Encode(c Command) ([]byte, error) {
	kind := kindOf(c)
	if kind == 0 {
		return nil, fmt.Errorf("encode %T: it is not in the registry of commands", c)
	}
	body, err := codec.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", c, err)
	}
	if size := headSize + len(body); size > MaxSize {
		return nil, fmt.Errorf("encode %T: %w: %d bytes, at most %d", c, ErrTooLarge, size, MaxSize)
	}
	var stamp uint64
	if at := c.stamp().At; !at.IsZero() {
		stamp = uint64(at.UnixNano())
	}
	return append(binary.BigEndian.AppendUint64([]byte{Level, byte(kind)}, stamp), body...), nil
}

// Fingerprint identifies a command by its kind and its encoded arguments (SHA-256), whatever its time stamp.
func Fingerprint(c Command) ([]byte, error) {
	if sum := c.stamp().fingerprint; sum != nil {
		return sum, nil
	}
	entry, err := Encode(c)
	if err != nil {
		return nil, err
	}
	return fingerprint(entry), nil
}

func fingerprint(entry []byte) []byte {
	hash := sha256.New()
	hash.Write(entry[1:2])
	hash.Write(entry[headSize:])
	return hash.Sum(nil)
}

// Decode decodes a log entry, which may be any bytes. The error is ErrUnknownCommand or ErrMalformed.
func Decode(entry []byte) (Command, error) {
	if len(entry) > 0 && entry[0] > Level {
		return nil, fmt.Errorf("%w: level %d, this program knows up to %d", ErrUnknownCommand, entry[0], Level)
	}
	if len(entry) < headSize {
		return nil, fmt.Errorf("%w: %d bytes", ErrMalformed, len(entry))
	}
	if entry[0] == 0 || entry[1] == 0 {
		return nil, fmt.Errorf("%w: level %d, kind %d", ErrMalformed, entry[0], entry[1])
	}
	known, ok := kinds[kind(entry[1])]
	if !ok {
		return nil, fmt.Errorf("%w: kind %d", ErrUnknownCommand, entry[1])
	}
	c := known.empty()
	if err := codec.UnmarshalStrict(entry[headSize:], c); err != nil {
		return nil, fmt.Errorf("%w: %T: %w", ErrMalformed, c, err)
	}
	if stamp := binary.BigEndian.Uint64(entry[2:]); stamp != 0 {
		c.stamp().At = time.Unix(0, int64(stamp)).UTC()
	}
	if s := c.stamp(); s.Key != "" {
		s.fingerprint = fingerprint(entry)
	}
	return c, nil
}

// reply is the outcome of a command, or the answer to a query, as it is sent between agents.
type reply[R any] struct {
	Index  uint64   `json:"index,omitempty"` // of an answer
	Result R        `json:"result,omitempty"`
	Error  *failure `json:"error,omitempty"`
}

func encodeReply(result any, index uint64, err error) ([]byte, error) {
	r := reply[any]{Index: index, Result: result}
	if err != nil {
		r.Result, r.Error = nil, failureOf(err)
	}
	data, err := codec.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", result, err)
	}
	return data, nil
}

// decodeReply decodes a reply with the result R. Fields that a newer program added are ignored. refused is the error
// that was sent, err is that the data is no such reply.
func decodeReply[R any](data []byte) (result any, index uint64, refused, err error) {
	var r reply[*R]
	switch err := codec.Unmarshal(data, &r); {
	case err != nil:
		return nil, 0, nil, err
	case r.Error != nil:
		return nil, r.Index, r.Error.err(), nil
	case r.Result != nil:
		return *r.Result, r.Index, nil, nil
	case reflect.TypeFor[R]().Kind() == reflect.Slice: // an empty one is as good as none
		return *new(R), r.Index, nil, nil
	default:
		return nil, 0, nil, fmt.Errorf("there is no %T", *new(R))
	}
}

// EncodeOutcome encodes the outcome of a command for another agent. errors.Is and errors.As give the same answers
// for the error that DecodeOutcome returns, for errors of this package, cluster/claim and cluster/acl.
func EncodeOutcome(result any, err error) ([]byte, error) { return encodeReply(result, 0, err) }

// DecodeOutcome decodes the outcome of c, which may be any bytes. The error is the command's, or ErrMalformed.
func DecodeOutcome(c Command, data []byte) (result any, err error) {
	result, _, refused, err := kinds[kindOf(c)].outcome(data)
	if err != nil {
		return nil, fmt.Errorf("%w: outcome of %T: %w", ErrMalformed, c, err)
	}
	return result, refused
}
