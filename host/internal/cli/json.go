package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// appendMessage writes a message as JSON with the names of specs, such as external_id, and numbers as numbers:
// protojson has 64-bit ones as strings. Fields are in the order of the API; optional fields that are absent are left
// out.
func appendMessage(b *bytes.Buffer, m protoreflect.Message) error {
	if m.Descriptor().ParentFile().Package() == "google.protobuf" { // such as a time, which is a string
		text, err := protojson.Marshal(m.Interface())
		b.Write(text)
		return err
	}
	fields, between := m.Descriptor().Fields(), "{"
	for n := range fields.Len() {
		f := fields.Get(n)
		if f.HasPresence() && !m.Has(f) {
			continue
		}
		fmt.Fprintf(b, "%s%q:", between, f.Name())
		if err := appendField(b, f, m.Get(f)); err != nil {
			return err
		}
		between = ","
	}
	if between == "{" {
		b.WriteByte('{')
	}
	b.WriteByte('}')
	return nil
}

func appendField(b *bytes.Buffer, f protoreflect.FieldDescriptor, v protoreflect.Value) error {
	switch {
	case f.IsList():
		b.WriteByte('[')
		for n := range v.List().Len() {
			if n > 0 {
				b.WriteByte(',')
			}
			if err := appendValue(b, f, v.List().Get(n)); err != nil {
				return err
			}
		}
		b.WriteByte(']')
	case f.IsMap():
		var keys []protoreflect.MapKey
		v.Map().Range(func(key protoreflect.MapKey, _ protoreflect.Value) bool {
			keys = append(keys, key)
			return true
		})
		slices.SortFunc(keys, func(a, b protoreflect.MapKey) int { return cmp.Compare(a.String(), b.String()) })
		b.WriteByte('{')
		for n, key := range keys {
			if n > 0 {
				b.WriteByte(',')
			}
			if err := appendPlain(b, key.String()); err != nil {
				return err
			}
			b.WriteByte(':')
			if err := appendValue(b, f.MapValue(), v.Map().Get(key)); err != nil {
				return err
			}
		}
		b.WriteByte('}')
	default:
		return appendValue(b, f, v)
	}
	return nil
}

func appendValue(b *bytes.Buffer, f protoreflect.FieldDescriptor, v protoreflect.Value) error {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return appendMessage(b, v.Message())
	case protoreflect.EnumKind:
		return appendPlain(b, string(f.Enum().Values().ByNumber(v.Enum()).Name()))
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		if float := v.Float(); math.IsNaN(float) || math.IsInf(float, 0) {
			return appendPlain(b, fmt.Sprint(float)) // JSON has no such number
		}
	}
	return appendPlain(b, v.Interface())
}

func appendPlain(b *bytes.Buffer, v any) error {
	encoder := json.NewEncoder(b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return err
	}
	b.Truncate(b.Len() - len("\n"))
	return nil
}
