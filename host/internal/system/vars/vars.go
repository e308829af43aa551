// Package vars expands the variables of a workload's spec, such as ${node.name} or ${port.http}. Specs are
// parsed (host/internal/config) before the node and the ports are known, so variables stay in them as text.
// The agent expands those of services. The program that runs a workload's programs expands those of exec and
// sidecar. The caller provides the values.
package vars

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/pannier/pannier/sdk/service"
)

// The variables of a workload's spec.
const (
	NodeName          = "node.name"
	NodeDatacenter    = "node.datacenter"
	WorkloadID        = "workload.id"
	WorkloadNamespace = "workload.namespace"
	// Bootstrap, TokenFile and SecretsDir are paths on the host, of the service that a program belongs to. ProxyID
	// is the id of its proxy in Consul.
	Bootstrap  = "bootstrap"
	TokenFile  = "token_file"
	SecretsDir = "secrets_dir"
	ProxyID    = "proxy_id"
	// RestartEpoch and BaseID are what Envoy needs to take over from the one before it: how many have taken over before,
	// and a number that no other proxy of the machine has.
	RestartEpoch = "restart_epoch"
	BaseID       = "base_id"
)

// Port returns the variable of one of the workload's ports.
func Port(label string) string { return "port." + label }

// InServices returns the variables that may be used in a service of a workload whose ports have these labels.
func InServices(labels []string) []string {
	return withPorts([]string{NodeName, NodeDatacenter, WorkloadID, WorkloadNamespace, SecretsDir}, labels)
}

// InSidecars returns the variables that may be used in the command and the environment of a sidecar.
func InSidecars(labels []string) []string {
	return append(InPrograms(labels), RestartEpoch, BaseID)
}

// InPrograms returns the variables that may be used in the arguments and the environment of the workload's program.
func InPrograms(labels []string) []string {
	return withPorts([]string{NodeName, WorkloadID, WorkloadNamespace, Bootstrap, TokenFile, SecretsDir, ProxyID}, labels)
}

func withPorts(names, labels []string) []string {
	for _, label := range labels {
		names = append(names, Port(label))
	}
	return names
}

// UnknownError is a variable that has no value here.
type UnknownError struct {
	Name string
	// Known are the variables that have one.
	Known []string
}

func (e *UnknownError) Error() string {
	if len(e.Known) == 0 {
		return fmt.Sprintf("unknown variable ${%s}; there are none here; write $${ for a literal ${", e.Name)
	}
	return fmt.Sprintf("unknown variable ${%s}; known are ${%s}; write $${ for a literal ${", e.Name,
		strings.Join(e.Known, "}, ${"))
}

// Expand replaces each ${NAME} in text by the value of NAME in vars, and $${ by ${. Values are not expanded again.
// The error is an *UnknownError, or says where a brace is missing.
func Expand(text string, vars map[string]string) (string, error) {
	var out strings.Builder
	for rest := text; ; {
		before, after, found := strings.Cut(rest, "${")
		if !found {
			out.WriteString(rest)
			return out.String(), nil
		}
		if literal, escaped := strings.CutSuffix(before, "$"); escaped {
			out.WriteString(literal + "${")
			rest = after
			continue
		}
		name, after, closed := strings.Cut(after, "}")
		if !closed {
			return "", fmt.Errorf("%q has a ${ without }; write $${ for a literal ${", text)
		}
		value, known := vars[name]
		if !known {
			return "", &UnknownError{Name: name, Known: slices.Sorted(maps.Keys(vars))}
		}
		out.WriteString(before + value)
		rest = after
	}
}

// Escape returns a text that Expand turns back into text.
func Escape(text string) string { return strings.ReplaceAll(text, "${", "$${") }

// Service returns a copy of s with the variables in all its strings expanded, including those in a proxy's config;
// keys are not expanded. The error names each wrong field by its JSON name.
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

// value copies v with its strings expanded. path names it in errors.
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
