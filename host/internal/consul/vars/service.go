package vars

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/pannier/pannier/sdk/service"
)

// Service gives s with the variables of all its texts replaced, those in a proxy's
// config too; keys stay as they are. s itself is not changed. The error names each field
// that has a fault, with the names of the service's JSON.
func Service(s service.Service, vars map[string]string) (service.Service, error) {
	e := expander{vars: vars}
	out := e.value("", reflect.ValueOf(s)).Interface().(service.Service)
	if len(e.errs) > 0 {
		return service.Service{}, fmt.Errorf("service %q: %w", s.Name, errors.Join(e.errs...))
	}
	return out, nil
}

type expander struct {
	vars map[string]string
	errs []error
}

// value copies v with its texts expanded. path names it in errors.
func (e *expander) value(path string, v reflect.Value) reflect.Value {
	out := reflect.New(v.Type()).Elem()
	switch v.Kind() {
	case reflect.String:
		text, err := Expand(v.String(), e.vars)
		if err != nil {
			e.errs = append(e.errs, fmt.Errorf("%s: %w", path, err))
		}
		out.SetString(text)
	case reflect.Struct:
		for i := range v.NumField() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			out.Field(i).Set(e.value(strings.TrimPrefix(path+"."+name, "."), v.Field(i)))
		}
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return v
		}
		inner := e.value(path, v.Elem())
		if v.Kind() == reflect.Interface {
			return inner
		}
		out.Set(reflect.New(inner.Type()))
		out.Elem().Set(inner)
	case reflect.Slice:
		if v.IsNil() {
			return v
		}
		out.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
		for i := range v.Len() {
			out.Index(i).Set(e.value(fmt.Sprintf("%s[%d]", path, i), v.Index(i)))
		}
	case reflect.Map:
		if v.IsNil() {
			return v
		}
		out.Set(reflect.MakeMapWithSize(v.Type(), v.Len()))
		for it := v.MapRange(); it.Next(); {
			out.SetMapIndex(it.Key(), e.value(path+"."+it.Key().String(), it.Value()))
		}
	default:
		return v
	}
	return out
}
