package service

import (
	"fmt"
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	servicev1 "github.com/pannier/pannier/sdk/proto/pannier/service/v1"
)

// Every field of the model has a field in the message.
func TestServiceGoesIntoProtoAndBack(t *testing.T) {
	var full Service
	fill(reflect.ValueOf(&full).Elem(), new(int))
	for name, want := range map[string]Service{
		"full": full, "empty": {},
		"mesh": {Connect: &Connect{Gateway: &Gateway{Mesh: &Mesh{}}}},
	} {
		m, err := want.ToProto()
		if err != nil {
			t.Fatal(err)
		}
		got, err := FromProto(m)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got  %+v\nwant %+v", name, got, want)
		}
	}
	if got, err := FromProto(nil); err != nil || !reflect.DeepEqual(got, Service{}) {
		t.Errorf("nil: got %+v, %v", got, err)
	}
}

// Every field of the message has a field in the model.
func TestProtoGoesIntoServiceAndBack(t *testing.T) {
	want := &servicev1.Service{}
	fillMessage(want.ProtoReflect(), new(int))
	s, err := FromProto(want)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.ToProto(); err != nil || !proto.Equal(got, want) {
		t.Errorf("got  %v, %v\nwant %v", got, err, want)
	}
}

func TestConsulGoesIntoProtoAndBack(t *testing.T) {
	var want Consul
	fill(reflect.ValueOf(&want).Elem(), new(int))
	if got := ConsulFromProto(want.ToProto()); got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	m := &servicev1.Consul{}
	fillMessage(m.ProtoReflect(), new(int))
	if got := ConsulFromProto(m).ToProto(); !proto.Equal(got, m) {
		t.Errorf("got  %v\nwant %v", got, m)
	}
}

// A value that JSON cannot represent causes an error; it is not dropped.
func TestConfigThatIsNoJSON(t *testing.T) {
	s := Service{Connect: &Connect{SidecarService: &SidecarService{Proxy: &Proxy{Config: map[string]any{"f": func() {}}}}}}
	if _, err := s.ToProto(); err == nil {
		t.Error("accepted a function")
	}
}

// fill gives every field of v a different value.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprint("text ", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32:
		v.SetInt(int64(*n))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		element := reflect.New(v.Type().Elem()).Elem()
		fill(element, n)
		v.SetMapIndex(reflect.ValueOf(fmt.Sprint("key ", *n)), element)
	case reflect.Interface:
		v.Set(reflect.ValueOf(map[string]any{"n": float64(*n), "list": []any{"x", true, nil, 1.5}}))
	default:
		panic("no value for " + v.Kind().String())
	}
}

// fillMessage gives every field of a message a different value.
func fillMessage(m protoreflect.Message, n *int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsMap():
			value := f.MapValue()
			key := protoreflect.ValueOfString(fmt.Sprint("key ", *n)).MapKey()
			if value.Message() == nil {
				m.Mutable(f).Map().Set(key, scalar(value, n))
			} else {
				fillKnown(m.Mutable(f).Map().Mutable(key).Message(), n)
			}
		case f.IsList() && f.Message() != nil:
			fillKnown(m.Mutable(f).List().AppendMutable().Message(), n)
		case f.IsList():
			m.Mutable(f).List().Append(scalar(f, n))
		case f.Message() != nil:
			fillKnown(m.Mutable(f).Message(), n)
		default:
			m.Set(f, scalar(f, n))
		}
	}
}

// fillKnown sets one field of a well-known type: a google.protobuf.Value becomes a string.
func fillKnown(m protoreflect.Message, n *int) {
	if m.Descriptor().FullName() == "google.protobuf.Value" {
		f := m.Descriptor().Fields().ByName("string_value")
		m.Set(f, scalar(f, n))
		return
	}
	fillMessage(m, n)
}

func scalar(f protoreflect.FieldDescriptor, n *int) protoreflect.Value {
	*n++
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(fmt.Sprint("text ", *n))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(*n))
	default:
		panic("no value for " + f.Kind().String())
	}
}
