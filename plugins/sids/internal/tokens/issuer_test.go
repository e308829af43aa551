package tokens

import (
	"maps"
	"strings"
	"testing"
)

func TestConfig(t *testing.T) {
	for text, want := range map[string]config{
		`{}`: {Rate: 500},
		`{"token_file": "/a", "rate": 3, "consul": {"east": {"token_file": "/b"}}}`: {
			Rate:       3,
			tokenFiles: map[string]string{"default": "/a", "east": "/b"},
		},
		`{"consul": [{"east": {"token_file": "/b"}}, {"west": {"token_file": "/c"}}]}`: {
			Rate:       500,
			tokenFiles: map[string]string{"east": "/b", "west": "/c"},
		},
	} {
		i := newIssuer(t, text)
		if got := i.Get(); got.Rate != want.Rate || !maps.Equal(got.tokenFiles, want.tokenFiles) {
			t.Errorf("%s: got %+v, want %+v", text, got, want)
		}
	}
	i := newIssuer(t, `{"token_file": "/a"}`)
	for text, says := range map[string]string{
		`{"tokn_file": "/a"}`:                       `unknown key "tokn_file"`,
		`{"token_file": "a"}`:                       `token_file: got "a", want an absolute path`,
		`{"rate": 0}`:                               "rate: got 0",
		`{"rate": 1.5}`:                             "rate: want a whole number: got number 1.5",
		`{"consul": "east"}`:                        `consul: want a map of block: got string`,
		`{"consul": {"east": {"token": "x"}}}`:      `unknown field "token"`,
		`{"consul": {"east": {"token_file": "x"}}}`: `token_file of consul "east": got "x"`,
		`{"token_file": "/a", "consul": {"default": {"token_file": "/b"}}}`:            "token_file: given twice",
		`{"consul": [{"east": {"token_file": "/b"}}, {"east": {"token_file": "/c"}}]}`: `the block "east" is given twice`,
	} {
		if err := i.Configure(t.Context(), []byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want %q", text, err, says)
		}
	}
	if path := i.Get().tokenFiles["default"]; path != "/a" {
		t.Errorf("a configuration that is refused replaced the old one: got %q", path)
	}
}
