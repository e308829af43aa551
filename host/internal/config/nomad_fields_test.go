package config

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
)

// nomadBlocks are the keys of the blocks that Nomad has too, by the path of the block.
func nomadBlocks() map[string]fields {
	all := map[string]fields{"network": networkFields, "network.port": portFields}
	var add func(path string, t reflect.Type)
	add = func(path string, t reflect.Type) {
		all[path] = fieldsOf(t)
		for _, f := range reflect.VisibleFields(t) {
			if f.Type.Kind() == reflect.Pointer || isBlocks(f.Type) || isLabelled(f.Type) {
				add(path+"."+keyOf(f), f.Type.Elem())
			}
		}
	}
	add("service", reflect.TypeFor[service.Service]())
	return all
}

// The page's table explains why a field of Nomad's is refused, or what to write instead, for each of them and no other.
func TestPageHasRefusedFields(t *testing.T) {
	text := check.Must(os.ReadFile("../../../docs/workload-spec.md"))(t)
	_, table, found := strings.Cut(string(text), "| block | fields | what instead, or why |\n|---|---|---|\n")
	if !found {
		t.Fatal("the page has no table")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	said := map[string]bool{} // by the path of the field
	block := ""
	quoted := regexp.MustCompile("`([^`]+)`")
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 3 {
			t.Fatalf("not three cells: %s", line)
		}
		if name := strings.Trim(cells[0], " `"); name != "" {
			block = name
		}
		if !regexp.MustCompile(`^(other way|no): .`).MatchString(strings.TrimSpace(cells[2])) {
			t.Errorf("neither another way, nor no with a reason: %s", line)
		}
		for _, field := range quoted.FindAllStringSubmatch(cells[1], -1) {
			path := block + "." + field[1]
			if said[path] {
				t.Errorf("%s is there twice", path)
			}
			said[path] = true
		}
	}
	for path, f := range nomadBlocks() {
		for key := range f.refused {
			key := path + "." + key
			if !said[key] {
				t.Errorf("%s is refused, and the page does not say so", key)
			}
			delete(said, key)
		}
	}
	for key := range said {
		t.Errorf("the page says that %s is refused, which it is not", key)
	}
}
