// Package convert converts between Go types and protobuf messages by the names of their fields, so that nobody has to
// list them a second time. The kinds' packages use it; authors of plugins see Go types only.
//
// A field of a Go struct belongs to the message's field of the same name, which is that of its JSON tag, if it has one.
// Case and underscores do not matter (ExternalID and external_id). The tag `proto:"NAME"` says another name,
// `proto:"-"` that the message has no such field, `proto:",inline"` that the fields of a struct are the message's own,
// as those of an embedded one are unless a tag names it.
//
//   - A zero value is an absent field, and an absent message is the zero value. A nil pointer is an absent message.
//     Empty lists and maps become nil.
//   - A string type is an enum if the message's field is one: "single-node-writer" is
//     ACCESS_MODE_SINGLE_NODE_WRITER. A value that only one side knows becomes "" or the unspecified one.
//   - A [time.Duration] is a number of milliseconds, rounded up, in a field whose name ends in _ms.
//   - A [time.Time] is a google.protobuf.Timestamp.
//   - A map is a map, or a message that has nothing else.
//   - An int is limited to the field's 32 bits.
//
// A Go field without a counterpart is a fault of the program, and panics when its type is first converted.
package convert

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// To returns a message with the fields of all values, which are structs.
func To[M any, P interface {
	*M
	proto.Message
}](values ...any) P {
	m := P(new(M))
	for _, v := range values {
		fill(m.ProtoReflect(), reflect.ValueOf(v))
	}
	return m
}

// From returns the fields of T that a message has; nil is an empty message.
func From[T any](m proto.Message) (v T) {
	read(m.ProtoReflect(), reflect.ValueOf(&v).Elem())
	return v
}

var (
	timeType     = reflect.TypeFor[time.Time]()
	durationType = reflect.TypeFor[time.Duration]()
)

// pair is a field of a struct and the one of a message.
type pair struct {
	index []int // reflect.Value.FieldByIndex
	field protoreflect.FieldDescriptor
}

type planKey struct {
	of      reflect.Type
	message protoreflect.FullName
}

var plans sync.Map // planKey → []pair

// plan returns the fields that a struct and a message have in common.
func plan(of reflect.Type, message protoreflect.MessageDescriptor) []pair {
	key := planKey{of, message.FullName()}
	if known, ok := plans.Load(key); ok {
		return known.([]pair)
	}
	pairs := compare(of, message, nil)
	plans.Store(key, pairs)
	return pairs
}

func compare(of reflect.Type, message protoreflect.MessageDescriptor, at []int) (pairs []pair) {
	for i := range of.NumField() {
		f := of.Field(i)
		index := slices.Concat(at, []int{i})
		name, option, _ := strings.Cut(f.Tag.Get("proto"), ",")
		inJSON, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case f.Anonymous && name == "" || option == "inline":
			pairs = append(pairs, compare(f.Type, message, index)...)
		default:
			field := named(message, cmp.Or(name, inJSON, f.Name), f.Type == durationType)
			if field == nil {
				panic(fmt.Sprintf("convert %v: %s has no field for %s", of, message.FullName(), f.Name))
			}
			pairs = append(pairs, pair{index, field})
		}
	}
	return pairs
}

// named returns the message's field of a name; nil: there is none.
func named(message protoreflect.MessageDescriptor, name string, duration bool) protoreflect.FieldDescriptor {
	if duration {
		name += "ms"
	}
	fold := func(s string) string { return strings.ToLower(strings.ReplaceAll(s, "_", "")) }
	for i := range message.Fields().Len() {
		if field := message.Fields().Get(i); fold(string(field.Name())) == fold(name) {
			return field
		}
	}
	return nil
}

// fill sets the fields of a message.
func fill(m protoreflect.Message, v reflect.Value) {
	for v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	switch {
	case v.Type() == timeType:
		proto.Merge(m.Interface(), timestamppb.New(v.Interface().(time.Time)))
	case v.Kind() == reflect.Map:
		set(m, m.Descriptor().Fields().Get(0), v)
	default:
		for _, p := range plan(v.Type(), m.Descriptor()) {
			set(m, p.field, v.FieldByIndex(p.index))
		}
	}
}

func set(m protoreflect.Message, field protoreflect.FieldDescriptor, v reflect.Value) {
	kind := v.Kind()
	if v.IsZero() || (kind == reflect.Slice || kind == reflect.Map) && v.Len() == 0 {
		return
	}
	switch {
	case field.IsMap():
		to := m.Mutable(field).Map()
		for entries := v.MapRange(); entries.Next(); {
			to.Set(scalarTo(field.MapKey(), entries.Key()).MapKey(), scalarTo(field.MapValue(), entries.Value()))
		}
	case field.IsList():
		to := m.Mutable(field).List()
		for i := range v.Len() {
			if field.Message() == nil {
				to.Append(scalarTo(field, v.Index(i)))
				continue
			}
			e := to.NewElement()
			fill(e.Message(), v.Index(i))
			to.Append(e)
		}
	case field.Message() != nil:
		fill(m.Mutable(field).Message(), v)
	default:
		m.Set(field, scalarTo(field, v))
	}
}

func scalarTo(field protoreflect.FieldDescriptor, v reflect.Value) protoreflect.Value {
	switch field.Kind() {
	case protoreflect.EnumKind:
		name := protoreflect.Name(enumPrefix(field) + strings.ToUpper(strings.ReplaceAll(v.String(), "-", "_")))
		if value := field.Enum().Values().ByName(name); value != nil {
			return protoreflect.ValueOfEnum(value.Number())
		}
		return protoreflect.ValueOfEnum(0)
	case protoreflect.Int64Kind:
		if v.Type() == durationType {
			return protoreflect.ValueOfInt64(int64((time.Duration(v.Int()) + time.Millisecond - 1) / time.Millisecond))
		}
		return protoreflect.ValueOfInt64(v.Int())
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(min(v.Int(), math.MaxInt32)))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(v.String())
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(v.Bytes())
	default: // the same type on both sides
		return protoreflect.ValueOf(v.Interface())
	}
}

// enumPrefix is what the names of an enum's values begin with, such as "ACCESS_MODE_".
func enumPrefix(field protoreflect.FieldDescriptor) string {
	return strings.TrimSuffix(string(field.Enum().Values().Get(0).Name()), "UNSPECIFIED")
}

// read sets what a message has.
func read(m protoreflect.Message, v reflect.Value) {
	switch {
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		read(m, v.Elem())
	case v.Type() == timeType:
		v.Set(reflect.ValueOf(m.Interface().(*timestamppb.Timestamp).AsTime()))
	case v.Kind() == reflect.Map:
		get(m, m.Descriptor().Fields().Get(0), v)
	default:
		for _, p := range plan(v.Type(), m.Descriptor()) {
			get(m, p.field, v.FieldByIndex(p.index))
		}
	}
}

func get(m protoreflect.Message, field protoreflect.FieldDescriptor, v reflect.Value) {
	if !m.Has(field) {
		return
	}
	from := m.Get(field)
	switch {
	case field.IsMap():
		v.Set(reflect.MakeMapWithSize(v.Type(), from.Map().Len()))
		from.Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
			k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			scalarFrom(field.MapKey(), key.Value(), k)
			scalarFrom(field.MapValue(), value, e)
			v.SetMapIndex(k, e)
			return true
		})
	case field.IsList():
		v.Set(reflect.MakeSlice(v.Type(), from.List().Len(), from.List().Len()))
		for i := range v.Len() {
			if field.Message() == nil {
				scalarFrom(field, from.List().Get(i), v.Index(i))
			} else {
				read(from.List().Get(i).Message(), v.Index(i))
			}
		}
	case field.Message() != nil:
		read(from.Message(), v)
	default:
		scalarFrom(field, from, v)
	}
}

func scalarFrom(field protoreflect.FieldDescriptor, from protoreflect.Value, v reflect.Value) {
	switch {
	case field.Kind() == protoreflect.EnumKind:
		value := field.Enum().Values().ByNumber(from.Enum())
		if value != nil && from.Enum() != 0 {
			name := strings.TrimPrefix(string(value.Name()), enumPrefix(field))
			v.SetString(strings.ToLower(strings.ReplaceAll(name, "_", "-")))
		}
	case v.Type() == durationType:
		v.SetInt(from.Int() * int64(time.Millisecond))
	default:
		v.Set(reflect.ValueOf(from.Interface()).Convert(v.Type()))
	}
}
