package codec_test

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/codec"
	"github.com/pannier/pannier/test/lib/check"
)

// TestRecords encodes records with a value in each field, and without any, and decodes them from bytes that are cut.
func TestRecords(t *testing.T) {
	for _, record := range []any{
		claim.Volume{},
		claim.Claim{},
		claim.Workload{},
		claim.Node{},
		claim.Driver{},
		claim.Token{},
		claim.Snapshot{},
		claim.SigningKey{},
		claim.KeyRotation{},
		claim.SecretsKeys{},
		claim.Liveness{},
		claim.Autopilot{},
		claim.Cluster{},
		acl.Policy{},
		acl.Role{},
		acl.Token{},
		acl.Bootstrap{},
	} {
		full, count := reflect.New(reflect.TypeOf(record)), 0
		setAll(full.Elem(), &count)
		for _, v := range []any{record, full.Elem().Interface()} {
			data, err := codec.Marshal(v)
			check.NoError(t, err)
			again, err := codec.Marshal(v)
			if err != nil || string(again) != string(data) {
				t.Errorf("%T has other bytes when it is encoded again (%v)", v, err)
			}
			got := reflect.New(reflect.TypeOf(v))
			if err := codec.UnmarshalStrict(data, got.Interface()); err != nil || !reflect.DeepEqual(got.Elem().Interface(), v) {
				t.Errorf("%T is decoded as another (%v)", v, err)
			}
			for end := range data {
				if err := codec.Unmarshal(data[:end], reflect.New(reflect.TypeOf(v)).Interface()); err == nil {
					t.Fatalf("%T of %d bytes is decoded from %d", v, len(data), end)
				}
			}
		}
	}
}

// setAll sets all fields that are encoded to different values.
func setAll(v reflect.Value, count *int) {
	*count++
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprint("text ", *count))
	case reflect.Int, reflect.Int64:
		v.SetInt(-int64(*count) << 40)
	case reflect.Uint64:
		v.SetUint(uint64(*count) << 50)
	case reflect.Uint8:
		v.SetUint(uint64(*count % 256))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		setAll(v.Elem(), count)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		setAll(v.Index(0), count)
		setAll(v.Index(1), count)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 20 {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			setAll(key, count)
			setAll(value, count)
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		if at, ok := v.Addr().Interface().(*time.Time); ok {
			*at = time.Unix(int64(*count), int64(*count)).UTC()
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).Tag.Get("json") != "-" {
				setAll(v.Field(i), count)
			}
		}
	default:
		panic("setAll: " + v.Type().String())
	}
}

// TestUnknownFields: those of a later program are ignored, except where they must not be.
func TestUnknownFields(t *testing.T) {
	data, err := codec.Marshal(map[string]any{"id": "c", "of-tomorrow": map[string]int{"x": 1}})
	check.NoError(t, err)
	var c claim.Cluster
	if err := codec.Unmarshal(data, &c); err != nil || c.ID != "c" {
		t.Errorf("decoded %+v, %v", c, err)
	}
	if err := codec.UnmarshalStrict(data, &c); err == nil {
		t.Error("an unknown field is accepted")
	}
	if err := codec.Unmarshal(append(data, 0), &c); err == nil {
		t.Error("bytes after the value are accepted")
	}
}
