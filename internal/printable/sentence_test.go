package printable_test

import (
	"testing"

	"github.com/pannier/pannier/internal/printable"
)

func TestSentence(t *testing.T) {
	for text, want := range map[string]string{
		"":                      "",
		"a volume is not known": "a volume is not known",
		`probe: rpc error: code = NotFound desc = not_found: there is no policy "web"`: `probe: there is no policy "web"`,
		"expand: rpc error: code = Unimplemented desc =":                               "expand: it answered Unimplemented",
		"rpc error: code = Unavailable desc = unavailable: it is away":                 "it is away",
		"deadline_exceeded: context deadline exceeded":                                 "context deadline exceeded",
		"unknown: x, stage_publish_base_dir: y":                                        "unknown: x, stage_publish_base_dir: y",
	} {
		if got := printable.Sentence(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
