package config

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
)

// Every field is either taken over by a reload or named among the differences.
func TestDifferences(t *testing.T) {
	reloaded := []string{"LogLevel", "Plugins", "Drivers", "Places", "source"}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Agent]()) {
		if (field.Tag.Get("key") == "") != slices.Contains(reloaded, field.Name) {
			t.Errorf("%s has the key %q", field.Name, field.Tag.Get("key"))
		}
	}
	a, b := defaults(), defaults()
	b.HTTPPort, b.RPCPort, b.Name, b.LogLevel, b.GC.Interval = 1, 2, "other", "debug", 1
	b.Drivers = []Driver{{ID: "a"}}
	if got, want := a.Differences(b), []string{"name", "ports", "gc"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if !Interpolated([]string{"gc", "name"}) || Interpolated([]string{"gc"}) {
		t.Error("of these keys name alone is interpolated")
	}
}

// A reload reads the same sources again, and says where blocks are.
func TestReload(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agent.hcl")
	write := func(text string) {
		check.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	write("")
	name := "host-1"
	dirs := 0
	a, err := Load(Source{
		Paths: []string{file}, Dev: true, Flags: Overrides{Name: &name},
		TempDir: func() (string, error) { dirs++; return t.TempDir(), nil },
	})
	check.NoError(t, err)
	write("name = \"other\"\nbind_addr = \"127.0.0.2\"\nconsul {}\ncsi_driver \"a\" {}\nplugin \"b\" {}\n")
	b := check.Must(a.Reload())(t)
	if got, want := a.Differences(b), []string{"bind_addr", "consul and identity blocks"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if dirs != 1 || b.Name != name || b.DataDir != a.DataDir {
		t.Errorf("%d folders, %q, %q and %q", dirs, b.Name, a.DataDir, b.DataDir)
	}
	for block, line := range map[string]string{`consul "default"`: ":3", `csi_driver "a"`: ":4", `plugin "b"`: ":5"} {
		if got, want := b.ProblemOf(block, "x").String(), file+line+": x"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	write("name = ")
	if _, err := b.Reload(); err == nil {
		t.Error("a file with a mistake is read")
	}
}
