package sdk

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
)

type settings struct {
	Root  string            `json:"root" required:"true" doc:"where the volumes are"`
	Mode  string            `json:"mode" default:"0755"`
	Rate  int               `json:"rate" default:"500" doc:"calls a second"`
	Hosts []string          `json:"hosts"`
	Tags  map[string]string `json:"tags"`
	Quota struct {
		Bytes int64 `json:"bytes"`
	} `json:"quota"`

	checked bool
}

func (s *settings) Validate() error {
	s.checked = true
	if s.Rate < 1 {
		return errors.New("rate: at least 1")
	}
	return nil
}

type configured struct{ Config[settings] }

func TestConfig(t *testing.T) {
	c := &configured{}
	if got := c.Get(); got.Mode != "0755" || got.Rate != 500 {
		t.Errorf("before the first configuration: %+v", got)
	}
	if err := c.Configure(t.Context(), []byte(`{"root":"/a","hosts":["x"],"quota":{"bytes":5}}`)); err != nil {
		t.Fatal(err)
	}
	if got := c.Get(); got.Root != "/a" || got.Rate != 500 || !got.checked || got.Quota.Bytes != 5 || len(got.Hosts) != 1 {
		t.Errorf("%+v", got)
	}
	for config, want := range map[string]string{
		`[]`:                            "not a JSON object",
		`null`:                          "not a JSON object",
		`{}`:                            "root: is required: where the volumes are",
		`{"root":"/a","rote":1}`:        `unknown key "rote": known are root, mode, rate`,
		`{"root":5}`:                    "root: want a string: got number",
		`{"root":"/a","rate":"x"}`:      "rate: want a whole number: got string",
		`{"root":"/a","rate":1.5}`:      "rate: want a whole number: got number 1.5",
		`{"root":"/a","rate":0}`:        "rate: at least 1",
		`{"root":"/a","hosts":"x"}`:     "hosts: want a list of string: got string",
		`{"root":"/a","quota":{"b":1}}`: `quota: want a block: json: unknown field "b"`,
	} {
		for _, do := range []func() error{
			func() error { return c.Validate(t.Context(), []byte(config)) },
			func() error { return c.Configure(t.Context(), []byte(config)) },
		} {
			if err := do(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", config, err, want)
			}
		}
	}
	if got := c.Get(); got.Root != "/a" {
		t.Errorf("a refused configuration took the place of %+v", got)
	}
}

// What a plugin says of its configuration reaches the host with its Info, also from within a wrapper.
func TestConfigKeys(t *testing.T) {
	type wrapper struct{ unwrapped }
	s := &service{info: Info{Name: "x"}, plugin: Plugin{Impl: wrapper{unwrapped{&configured{}}}}}
	info, err := s.Info(t.Context(), &pluginv1.InfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var got [][]any
	for _, k := range info.GetConfigKeys() {
		got = append(got, []any{k.GetName(), k.GetType(), k.GetRequired(), k.GetDefaultValue(), k.GetDoc()})
	}
	want := [][]any{
		{"root", "string", true, "", "where the volumes are"},
		{"mode", "string", false, "0755", ""},
		{"rate", "whole number", false, "500", "calls a second"},
		{"hosts", "list of string", false, "", ""},
		{"tags", "map of string", false, "", ""},
		{"quota", "block", false, "", ""},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if err := s.validate(t.Context(), []byte(`{"root":5}`)); err == nil {
		t.Error("a wrapped Validator was not asked")
	}
}

type unwrapped struct{ inner any }

func (u unwrapped) Unwrap() any { return u.inner }

type wrongDefault struct {
	Rate int `json:"rate" default:"many"`
}

func TestAWrongDefaultIsTheAuthorsMistake(t *testing.T) {
	defer func() {
		if v := recover(); v == nil || !strings.Contains(v.(error).Error(), "the default of the key rate") {
			t.Errorf("got %v", v)
		}
	}()
	(&Config[wrongDefault]{}).Get()
}
