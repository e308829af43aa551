package sdk

import (
	"bytes"
	"context"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
)

// Config is a plugin's configuration, decoded into T, a struct. An implementation embeds it, and is a Validator, a
// Configurer and a Describer by that; Get returns what applies now.
//
// A key is a field with a json tag. Its doc tag is one line for the operator, its default tag the value while the key
// is not given (JSON, or a string as it is), and required:"true" refuses a configuration without it. A key that T
// lacks, in it or below it, and a value of another type are refused by name. At the end *T's method Validate() error
// is called, if it has one: it checks, and may set fields that have no key.
type Config[T any] struct{ now atomic.Pointer[T] }

// Describer is implemented by a plugin that lists its configuration keys. Config does.
type Describer interface {
	ConfigKeys() []ConfigKey
}

// ConfigKey describes a key of a configuration for operators.
type ConfigKey struct {
	Name     string
	Type     string // such as "string", "number", "bool", "list of string", "block"
	Required bool
	Default  string // as it would be written; empty: none
	Doc      string
}

// Get returns the present configuration, which is T's defaults before the first one. It must not be changed. Take it
// once in a call: the next Get may return another.
func (c *Config[T]) Get() *T {
	if now := c.now.Load(); now != nil {
		return now
	}
	t, err := decode[T]([]byte("{}"))
	if t == nil {
		panic(err)
	}
	return t
}

// Validate implements Validator.
func (*Config[T]) Validate(_ context.Context, config []byte) error {
	_, err := decode[T](config)
	return err
}

// Configure implements Configurer.
func (c *Config[T]) Configure(_ context.Context, config []byte) error {
	next, err := decode[T](config)
	if err == nil {
		c.now.Store(next)
	}
	return err
}

// ConfigKeys implements Describer.
func (*Config[T]) ConfigKeys() []ConfigKey {
	var keys []ConfigKey
	for _, f := range fields[T]() {
		keys = append(keys, ConfigKey{
			Name: f.key, Type: typeName(f.Type), Required: f.Tag.Get("required") == "true",
			Default: f.Tag.Get("default"), Doc: f.Tag.Get("doc"),
		})
	}
	return keys
}

// field is a field of a configuration that has a key.
type field struct {
	reflect.StructField
	key string
}

func fields[T any]() []field {
	var keys []field
	for _, f := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if key != "" && key != "-" && f.IsExported() {
			keys = append(keys, field{f, key})
		}
	}
	return keys
}

func defaults[T any]() (*T, error) {
	t := new(T)
	for _, f := range fields[T]() {
		text, ok := f.Tag.Lookup("default")
		if !ok {
			continue
		}
		if typeName(f.Type) == "string" {
			quoted, _ := json.Marshal(text) // a string cannot fail
			text = string(quoted)
		}
		if err := strictly([]byte(text), f.in(t)); err != nil {
			return nil, fmt.Errorf("the default of the key %s of %T: %w", f.key, *t, err)
		}
	}
	return t, nil
}

// in returns a pointer to the field of a T.
func (f field) in(t any) any {
	return reflect.ValueOf(t).Elem().FieldByIndex(f.Index).Addr().Interface()
}

func decode[T any](config []byte) (*T, error) {
	t, err := defaults[T]()
	if err != nil {
		return nil, err
	}
	given := map[string]json.RawMessage{}
	if err := json.Unmarshal(config, &given); err != nil || given == nil {
		return nil, fmt.Errorf("the configuration is not a JSON object: %.40s", config)
	}
	var known []string
	for _, f := range fields[T]() {
		known = append(known, f.key)
		value, ok := given[f.key]
		delete(given, f.key)
		switch {
		case !ok && f.Tag.Get("required") == "true":
			err = errors.Join(err, fmt.Errorf("%s: is required: %s", f.key, f.Tag.Get("doc")))
		case ok:
			if wrong := strictly(value, f.in(t)); wrong != nil {
				err = errors.Join(err, fmt.Errorf("%s: want a %s: %w", f.key, typeName(f.Type), wrong))
			}
		}
	}
	for key := range given {
		err = errors.Join(err, fmt.Errorf("unknown key %q: known are %s", key, strings.Join(known, ", ")))
	}
	if v, ok := any(t).(interface{ Validate() error }); ok && err == nil {
		err = v.Validate()
	}
	return t, err
}

// strictly decodes JSON and refuses unknown keys at any depth.
func strictly(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		at := ""
		if wrong.Field != "" {
			at = wrong.Field + ": "
		}
		return fmt.Errorf("%sgot %s", at, wrong.Value)
	}
	return err
}

// typeName is the kind of value that a key takes, in an operator's words.
func typeName(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		return typeName(t.Elem())
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return "string"
	}
	switch t.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "bool"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "whole number"
	case reflect.Float32, reflect.Float64:
		return "number"
	case reflect.Slice, reflect.Array:
		return "list of " + typeName(t.Elem())
	case reflect.Map:
		return "map of " + typeName(t.Elem())
	default:
		return "block"
	}
}
