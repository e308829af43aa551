package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"

	"github.com/pannier/pannier/sdk/service"
)

// The blocks of a service have the keys that the fields of the model have in JSON, which are Nomad's. So they are read
// by the model's types.

// besides are the keys of a block, by its type, that are no fields of the model: keys of Nomad that mean nothing here,
// and keys that are refused.
var besides = map[reflect.Type]fields{
	reflect.TypeFor[service.Service](): {
		attrs: []string{"provider", "address_mode", "cluster", "kind", "on_update"},
		refused: map[string]string{
			"task":          "a workload has one program; leave it out",
			"check_restart": noRestarts,
			"identity":      "what token a service gets is the agent's configuration, in its consul block; leave it out",
		},
	},
	reflect.TypeFor[service.Check](): {
		attrs: []string{"address_mode", "on_update"},
		refused: map[string]string{
			"command":       noScripts,
			"args":          noScripts,
			"task":          "a workload has one program; leave it out",
			"check_restart": noRestarts,
			"advertise":     "write the address to check as address",
		},
	},
	reflect.TypeFor[service.Connect](): {refused: map[string]string{
		"sidecar_task": "a proxy is a program of your choice; write a sidecar block in the workload instead",
	}},
	reflect.TypeFor[service.Proxy](): {refused: map[string]string{
		"transparent_proxy": "the node's network is not redirected for a workload; write upstreams blocks",
	}},
}

const (
	noScripts = `scripts are not run; let the program answer a check of type http, tcp or grpc, ` +
		`or use type = "process", which passes while the workload's process lives`
	noRestarts = "Pannier restarts no workload; systemd does, with WatchdogSec= and Restart= in the unit"
)

// constant are keys whose values may not contain variables, since what is known is one of a few, or a duration.
var constant = []string{
	"type", "protocol", "method", "interval", "timeout", "initial_status", "mode", "admin", "destination_type",
	"local_bind_socket_mode", "connect_timeout", "envoy_dns_discovery_type", "tls_min_version", "tls_max_version",
	"intentions", "consul",
}

// keyOf returns the key of a field, which is in the singular for blocks that may occur more than once; empty: there is
// none.
func keyOf(f reflect.StructField) string {
	name := inJSON(f)
	switch {
	case name == "identity_only" || strings.HasSuffix(name, "_port_label"):
		return ""
	case isBlocks(f.Type) && name != "upstreams":
		return strings.TrimSuffix(name, "s")
	}
	return name
}

// inJSON returns the name of a field in JSON.
func inJSON(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

func isBlocks(t reflect.Type) bool {
	return t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct
}

// isLabelled reports whether the values of a map are blocks with a label.
func isLabelled(t reflect.Type) bool {
	return t.Kind() == reflect.Map && t.Elem().Kind() == reflect.Struct &&
		t.Elem() != reflect.TypeFor[service.HeaderValues]()
}

// fieldsOf returns the keys of a block of a type of the model.
func fieldsOf(t reflect.Type) fields {
	f := besides[t]
	for n := range t.NumField() {
		switch key, of := keyOf(t.Field(n)), t.Field(n).Type; {
		case key == "":
		case of.Kind() == reflect.Pointer || isBlocks(of):
			f.blocks = append(f.blocks, key)
		case isLabelled(of):
			f.labelled = append(f.labelled, key)
		case of.Kind() == reflect.Map:
			f.maps = append(f.maps, key)
		default:
			f.attrs = append(f.attrs, key)
		}
	}
	return f
}

// read reads a block into a value of the model. at is the value's pointer in service.Problem.
func (r *workloadReader) read(in *section, at string, into reflect.Value) {
	r.places[at] = in
	for n := range into.NumField() {
		key := keyOf(into.Type().Field(n))
		from := in
		if slices.Contains(constant, key) {
			from = in.plain()
		}
		switch dst := into.Field(n).Addr().Interface().(type) {
		case *string:
			switch {
			case into.Type() == reflect.TypeFor[service.Service]() && key == "name": // it is read before
			case strings.HasSuffix(key, "port"):
				in.numberOrLabel(key, dst)
			case n == 0 && slices.Contains([]string{"name", "destination_name", "path"}, key):
				in.title(key, dst)
			case key != "":
				from.str(key, dst)
			}
		case *bool:
			in.boolean(key, dst)
		case *int32:
			if label := into.FieldByName(into.Type().Field(n).Name + "Label"); label.IsValid() {
				in.smallOrLabel(key, dst, label.Addr().Interface().(*string))
			} else {
				in.small(key, dst)
			}
		case *[]string:
			from.strings(key, dst)
		case *map[string]string:
			*dst = in.texts(key)
		case *map[string]any:
			*dst = in.object(key)
		case *map[string]service.HeaderValues:
			*dst = headerValues(in)
		default:
			r.readBlocks(in, key, at+"/"+inJSON(into.Type().Field(n)), into.Field(n))
		}
	}
	if c, is := into.Addr().Interface().(*service.Check); is {
		if checkAddressMode(in); c.Type == "script" {
			in.fail("type", noScripts)
		}
		checkOnUpdate(in)
	}
}

// readBlocks reads the blocks of a key into a field: one, several, or several with labels.
func (r *workloadReader) readBlocks(in *section, key, at string, field reflect.Value) {
	blocks, of := in.content.Blocks.OfType(key), field.Type().Elem()
	read := func(block *hcl.Block, at string) reflect.Value {
		v := reflect.New(of)
		if weights, is := v.Interface().(*service.Weights); is {
			*weights = service.Weights{Passing: 1, Warning: 1}
		}
		r.read(in.inner(block, fieldsOf(of)), at, v.Elem())
		return v
	}
	switch field.Kind() {
	case reflect.Pointer:
		if block := in.one(key); block != nil {
			field.Set(read(block, at))
		}
	case reflect.Slice:
		for i, block := range blocks {
			field.Set(reflect.Append(field, read(block, fmt.Sprintf("%s/%d", at, i)).Elem()))
		}
	default:
		for _, block := range blocks {
			label := reflect.ValueOf(block.Labels[0])
			if field.IsNil() {
				field.Set(reflect.MakeMap(field.Type()))
			}
			if field.MapIndex(label).IsValid() {
				in.problems.add(block.DefRange, "%s: block given twice", in.key(fmt.Sprintf("%s %q", key, label)))
			}
			field.SetMapIndex(label, read(block, at+"/"+block.Labels[0]).Elem())
		}
	}
}
