package apiserver

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pannier/pannier/host/internal/peer/transport"
)

const (
	// maxNodes bounds the messages, elements of lists and entries of maps in a request. Two bytes of a request make one
	// that takes nodeBytes in memory (measured with the largest message of a specification).
	maxNodes  = 20_000
	nodeBytes = 512
)

// codecs decode requests of a bounded number of nodes.
func codecs() []connect.HandlerOption {
	return []connect.HandlerOption{
		connect.WithCodec(codec{"proto"}), connect.WithCodec(codec{"json"}), connect.WithCodec(codec{"json; charset=utf-8"}),
	}
}

// codec has the name of an encoding, as in content types. In JSON, unknown keys are errors: a misspelt read_only would
// mount a volume read-write. Protobuf clients may be newer and send fields that this agent does not know.
type codec struct{ name string }

func (c codec) Name() string { return c.name }

func (c codec) Marshal(message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	switch {
	case !ok:
		return nil, fmt.Errorf("%T is no protobuf message", message)
	case c.name == "proto":
		return proto.Marshal(m)
	}
	return protojson.Marshal(m)
}

func (c codec) Unmarshal(data []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no protobuf message", message)
	}
	return decode(data, m, c.name != "proto")
}

// decode counts a request's nodes before it makes any of them.
func decode(data []byte, m proto.Message, isJSON bool) error {
	var n int
	if isJSON {
		n = jsonNodes(data)
	} else {
		n = wireNodes(data, m.ProtoReflect().Descriptor(), maxNodes)
	}
	switch {
	case n > maxNodes:
		return connect.NewError(connect.CodeInvalidArgument,
			fmt.Errorf("the request has more than %d parts (fields, elements of lists)", maxNodes))
	case isJSON:
		return protojson.Unmarshal(data, m)
	}
	return proto.Unmarshal(data, m)
}

// jsonNodes returns the number of values and keys of a document.
func jsonNodes(data []byte) (n int) {
	quoted := false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++
		case !quoted && (c == ',' || c == '{' || c == '['):
			n++
		}
	}
	return n
}

// wireNodes returns the number of fields of a message and of those in it. It stops above most.
func wireNodes(data []byte, d protoreflect.MessageDescriptor, most int) (n int) {
	for len(data) > 0 && n <= most {
		number, kind, tag := protowire.ConsumeTag(data)
		if tag < 0 {
			return n // proto.Unmarshal reports it
		}
		size := protowire.ConsumeFieldValue(number, kind, data[tag:])
		if size < 0 {
			return n
		}
		n++
		if field := d.Fields().ByNumber(number); field != nil && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(data[tag:])
			switch {
			case field.Message() != nil:
				n += wireNodes(value, field.Message(), most-n)
			case field.IsList() && field.Kind() != protoreflect.StringKind && field.Kind() != protoreflect.BytesKind:
				n += len(value) // packed numbers
			}
		}
		data = data[tag+size:]
	}
	return n
}

// holdMessage counts a request as it is in memory, after it was decoded.
func holdMessage(ctx context.Context, msg any) error {
	m, ok := msg.(proto.Message)
	if !ok {
		return nil // the first message of a client's stream has not come yet
	}
	held, ok := ctx.Value(heldKey{}).(*transport.Held)
	if !ok {
		return nil
	}
	if err := held.Grow(proto.Size(m) + nodeBytes*messages(m.ProtoReflect())); err != nil {
		return connect.NewError(connect.CodeResourceExhausted, err)
	}
	return nil
}

// messages returns the number of messages in a message, itself included.
func messages(m protoreflect.Message) int {
	n := 1
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsMap():
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				if n++; field.MapValue().Message() != nil {
					n += messages(v.Message())
				}
				return true
			})
		case field.Message() == nil:
		case field.IsList():
			for i := range v.List().Len() {
				n += messages(v.List().Get(i).Message())
			}
		default:
			n += messages(v.Message())
		}
		return true
	})
	return n
}
