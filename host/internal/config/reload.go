package config

import (
	"cmp"
	"reflect"
	"slices"
)

// Reload reads the sources of this configuration again. The error is Problems.
func (a *Agent) Reload() (*Agent, error) {
	src := a.source
	if a.Dev {
		src.TempDir = func() (string, error) { return a.DataDir, nil }
	}
	return Load(src)
}

// Differences names the keys and blocks that another configuration has otherwise, and that only a new agent takes over.
func (a *Agent) Differences(other *Agent) (keys []string) {
	was, is := reflect.ValueOf(*a), reflect.ValueOf(*other)
	for n := range was.NumField() {
		key := was.Type().Field(n).Tag.Get("key")
		if key != "" && !slices.Contains(keys, key) &&
			!reflect.DeepEqual(was.Field(n).Interface(), is.Field(n).Interface()) {
			keys = append(keys, key)
		}
	}
	return keys
}

// Interpolated reports whether one of these keys (see Differences) may be part of the values of others, as ${node.name}
// is.
func Interpolated(keys []string) bool {
	return slices.ContainsFunc(keys, func(key string) bool {
		return slices.Contains([]string{"name", "datacenter", "data_dir", "plugin_dir"}, key)
	})
}

// ProblemOf is one with a block, such as csi_driver "x".
func (a *Agent) ProblemOf(block, text string) Problem {
	return Problem{Text: cmp.Or(a.Places[block], "-dev") + ": " + text}
}
