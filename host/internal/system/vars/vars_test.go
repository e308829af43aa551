package vars

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/pannier/pannier/sdk/service"
)

var vars = map[string]string{"node.name": "n1", "port.http": "8080", "tricky": "${node.name}"}

func TestExpand(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "",
		"plain $ { } $$":                "plain $ { } $$",
		"${node.name}":                  "n1",
		"a-${node.name}:${port.http}-b": "a-n1:8080-b",
		"${node.name}${node.name}":      "n1n1",
		"$${node.name}":                 "${node.name}",
		"$$${node.name}":                "$${node.name}",
		"x$${a}-${node.name}":           "x${a}-n1",
		"${tricky}":                     "${node.name}",
	} {
		if got, err := Expand(text, vars); err != nil || got != want {
			t.Errorf("%q: got %q, %v; want %q", text, got, err, want)
		}
	}
}

func TestExpandRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"${nod.name}": "unknown variable ${nod.name}; known are ${node.name}, ${port.http}, ${tricky}; write $${ for a literal ${",
		"${}":         "unknown variable ${}; known are ${node.name}, ${port.http}, ${tricky}; write $${ for a literal ${",
		"a ${node":    `"a ${node" has a ${ without }; write $${ for a literal ${`,
	} {
		got, err := Expand(text, vars)
		if err == nil || err.Error() != want || got != "" {
			t.Errorf("%q: got %q, %v", text, got, err)
		}
	}
	_, err := Expand("${x}", nil)
	var unknown *UnknownError
	if !errors.As(err, &unknown) || unknown.Name != "x" || !strings.Contains(err.Error(), "there are none here") {
		t.Errorf("got %v", err)
	}
}

func FuzzEscape(f *testing.F) {
	for _, text := range []string{"", "$", "${", "$${", "$$${a}", "${a}", "$$"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if got, err := Expand(Escape(text), nil); err != nil || got != text {
			t.Errorf("%q became %q, %v", text, got, err)
		}
	})
}

// Every string of a service is expanded, also those of fields that are added later.
func TestServiceExpandsEveryText(t *testing.T) {
	var s service.Service
	texts := fill(reflect.ValueOf(&s).Elem())
	s.Connect.SidecarService.Proxy.Config = map[string]any{
		"number": 1.5, "yes": true, "none": nil,
		"list": []any{"${node.name}", map[string]any{"deep": "${node.name}"}},
	}
	texts += 2 - 1 // fill had put one into the config that this one replaces
	before, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Service(s, vars)
	if err != nil {
		t.Fatal(err)
	}
	after, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.ReplaceAll(string(before), "${node.name}", "n1"); string(after) != want {
		t.Errorf("got  %s\nwant %s", after, want)
	}
	if n := strings.Count(string(before), "${node.name}"); n != texts || n < 50 {
		t.Errorf("the service of this test has %d of %d texts filled", n, texts)
	}
	if again, _ := json.Marshal(s); string(again) != string(before) {
		t.Error("the argument was changed")
	}
}

func TestServiceNamesTheField(t *testing.T) {
	_, err := Service(service.Service{
		Name: "web", Tags: []string{"ok", "${a}"},
		Connect: &service.Connect{SidecarService: &service.SidecarService{Proxy: &service.Proxy{
			Config: map[string]any{"list": []any{"${"}},
		}}},
	}, vars)
	const known = "known are ${node.name}, ${port.http}, ${tricky}; write $${ for a literal ${"
	want := `service "web": tags[1]: unknown variable ${a}; ` + known +
		"\nconnect.sidecar_service.proxy.config.list[0]: \"${\" has a ${ without }; write $${ for a literal ${"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestServiceKeepsWhatIsNotThere(t *testing.T) {
	s := service.Service{Name: "web", Tags: []string{}}
	if got, err := Service(s, nil); err != nil || !reflect.DeepEqual(got, s) {
		t.Errorf("got %+v, %v", got, err)
	}
}

// fill puts a variable into every string of v and returns the number of strings.
func fill(v reflect.Value) (texts int) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("x-${node.name}")
		return 1
	case reflect.Struct:
		for i := range v.NumField() {
			texts += fill(v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		return fill(v.Index(0))
	case reflect.Map:
		element := reflect.New(v.Type().Elem()).Elem()
		if element.Kind() == reflect.Interface {
			element.Set(reflect.ValueOf("x-${node.name}"))
			texts = 1
		} else {
			texts = fill(element)
		}
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("key"), element)
	}
	return texts
}
