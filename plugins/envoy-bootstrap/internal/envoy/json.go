package envoy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

const (
	// carrier is the type of google.protobuf.Any that carries a message of an unknown type: an extension that this
	// plugin was not built with, such as a company's own.
	carrier = "type.googleapis.com/google.protobuf.StringValue"
	// carried is the prefix of such a message's text.
	carried = "message of an unknown type: "
)

// encode returns m as JSON with Envoy's field names in the order of its API, indented by indent, or in one line if
// that is empty. The same message gives the same bytes; protojson alone varies its white space on purpose.
func encode(m proto.Message, indent string) ([]byte, error) {
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	if bytes.Contains(raw, []byte(carried)) {
		if raw, err = uncarried(raw); err != nil {
			return nil, err
		}
	}
	var out bytes.Buffer
	out.Grow(3 * len(raw)) // mostly white space
	if indent == "" {
		err = json.Compact(&out, raw)
	} else {
		err = json.Indent(&out, raw, "", indent)
	}
	out.WriteByte('\n')
	return out.Bytes(), err
}

// uncarried turns messages of unknown types back into JSON. Their keys are sorted, because their order is unknown.
func uncarried(raw []byte) ([]byte, error) {
	tree, err := decode(raw)
	if err != nil {
		return nil, err
	}
	if tree, err = unpack(tree); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	err = enc.Encode(tree)
	return out.Bytes(), err
}

// unmarshal reads JSON as Envoy's parser does, which accepts two things that protojson does not: one value for a
// list of one, and messages of types that are unknown here but may be known to Envoy.
func unmarshal(raw []byte, m proto.Message) error { return unmarshalAs(adapter{}, raw, m) }

func unmarshalAs(a adapter, raw []byte, m proto.Message) error {
	tree, err := decode(raw)
	if err != nil {
		return err
	}
	tree, err = a.adapt(tree, m.ProtoReflect().Descriptor())
	if err != nil {
		return err
	}
	if raw, err = json.Marshal(tree); err != nil {
		return err
	}
	return protojson.Unmarshal(raw, m)
}

func decode(raw []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var tree any
	if err := dec.Decode(&tree); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more behind the JSON value")
	}
	return tree, nil
}

// adapter converts JSON to what protojson accepts.
type adapter struct {
	// known leaves out the fields that are unknown here.
	known bool
}

// adapt converts a message's JSON.
func (a adapter) adapt(v any, d protoreflect.MessageDescriptor) (any, error) {
	object, ok := v.(map[string]any)
	switch {
	case !ok:
		return v, nil
	case d.FullName() == "google.protobuf.Any":
		return a.adaptAny(object)
	case wellKnown(d):
		return v, nil
	}
	return v, a.adaptFields(object, d)
}

// wellKnown types have a special JSON form.
func wellKnown(d protoreflect.MessageDescriptor) bool {
	return d.FullName().Parent() == "google.protobuf"
}

func (a adapter) adaptFields(object map[string]any, d protoreflect.MessageDescriptor) error {
	for name, value := range object {
		field := d.Fields().ByJSONName(name)
		if field == nil {
			field = d.Fields().ByTextName(name)
		}
		if field == nil && a.known && name != "@type" {
			delete(object, name)
		}
		if field == nil || value == nil {
			continue // protojson reports unknown fields
		}
		adapted, err := a.adaptField(value, field)
		if err != nil {
			return err
		}
		object[name] = adapted
	}
	return nil
}

func (a adapter) adaptField(value any, field protoreflect.FieldDescriptor) (any, error) {
	var err error
	switch {
	case field.IsMap():
		object, ok := value.(map[string]any)
		if of := field.MapValue().Message(); ok && of != nil {
			for k := range object {
				if object[k], err = a.adapt(object[k], of); err != nil {
					return nil, err
				}
			}
		}
	case field.IsList():
		list, ok := value.([]any)
		if !ok {
			list = []any{value}
		}
		if of := field.Message(); of != nil {
			for i := range list {
				if list[i], err = a.adapt(list[i], of); err != nil {
					return nil, err
				}
			}
		}
		return list, nil
	case field.Message() != nil:
		return a.adapt(value, field.Message())
	}
	return value, nil
}

func (a adapter) adaptAny(object map[string]any) (any, error) {
	url, _ := object["@type"].(string)
	if url == "" {
		return object, nil // protojson reports the error
	}
	t, err := protoregistry.GlobalTypes.FindMessageByURL(url)
	if err != nil {
		raw, err := json.Marshal(object)
		return map[string]any{"@type": carrier, "value": carried + string(raw)}, err
	}
	if wellKnown(t.Descriptor()) {
		return object, nil
	}
	return object, a.adaptFields(object, t.Descriptor())
}

// unpack reverses what adaptAny did to messages of unknown types.
func unpack(v any) (any, error) {
	var err error
	switch v := v.(type) {
	case []any:
		for i := range v {
			if v[i], err = unpack(v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		if text, ok := v["value"].(string); ok && v["@type"] == carrier {
			if raw, ok := strings.CutPrefix(text, carried); ok {
				return decode([]byte(raw))
			}
		}
		for k := range v {
			if v[k], err = unpack(v[k]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}
