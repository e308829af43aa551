package tokens

import (
	"maps"
	"strings"
	"testing"
)

func TestConfig(t *testing.T) {
	for text, want := range map[string]config{
		`{}`: {rate: 500},
		`{"token_file": "/a", "rate": 3, "consul": {"east": {"token_file": "/b"}}}`: {
			rate:       3,
			tokenFiles: map[string]string{"default": "/a", "east": "/b"},
		},
		`{"consul": [{"east": {"token_file": "/b"}}, {"west": {"token_file": "/c"}}]}`: {
			rate:       500,
			tokenFiles: map[string]string{"east": "/b", "west": "/c"},
		},
	} {
		got, err := parseConfig([]byte(text))
		if err != nil || got.rate != want.rate || !maps.Equal(got.tokenFiles, want.tokenFiles) {
			t.Errorf("%s: got %+v, %v, want %+v", text, got, err, want)
		}
	}
}

func TestConfigRefused(t *testing.T) {
	i := newIssuer(t, `{"token_file": "/a"}`)
	for text, says := range map[string]string{
		`{"tokn_file": "/a"}`:                       `unknown key "tokn_file": known are token_file, rate and consul`,
		`{"token_file": "a"}`:                       `token_file: got "a", want an absolute path`,
		`{"token_file": 1}`:                         `token_file: got 1`,
		`{"rate": 0}`:                               "rate: got 0",
		`{"rate": 1.5}`:                             "rate: got 1.5",
		`{"rate": "many"}`:                          `rate: got "many"`,
		`{"consul": "east"}`:                        `consul: got "east", want a block`,
		`{"consul": {"east": {"token": "x"}}}`:      `consul "east": unknown key "token"`,
		`{"consul": {"east": {"token_file": "x"}}}`: `token_file of consul "east": got "x"`,
		`{"token_file": "/a", "consul": {"default": {"token_file": "/b"}}}`: "token_file: given twice",
		`[]`: "the configuration: got []",
	} {
		for _, err := range []error{i.Validate(t.Context(), []byte(text)), i.Configure(t.Context(), []byte(text))} {
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: got %v, want %q", text, err, says)
			}
		}
	}
	if path := i.settings.Load().tokenFiles["default"]; path != "/a" {
		t.Errorf("a configuration that is refused replaced the old one: got %q", path)
	}
}
