package driver

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pannier/pannier/sdk/storage"
)

func TestRedactor(t *testing.T) {
	for name, tc := range map[string]struct {
		secrets  map[string]string
		flags    []string
		in, want string
	}{
		"value":          {map[string]string{"k": "hunter2"}, nil, "bad hunter2!", "bad [REDACTED]!"},
		"part of a word": {map[string]string{"k": "hunter2"}, nil, "xhunter2x", "x[REDACTED]x"},
		"short, as a word": {
			map[string]string{"k": "ro"},
			nil, "ro: error, -o ro,ro",
			"[REDACTED]: error, -o [REDACTED],[REDACTED]",
		},
		"longest first": {map[string]string{"a": "pass", "b": "password"}, nil, "password pass", "[REDACTED] [REDACTED]"},
		"quoted":        {map[string]string{"k": "a\nb\"c"}, nil, `got "a\nb\"c"`, `got "[REDACTED]"`},
		"as JSON":       {map[string]string{"k": "a<b>c"}, nil, `{"v":"a\u003cb\u003ec"}`, `{"v":"[REDACTED]"}`},
		"in a URL": {
			map[string]string{"k": "p@ss w&rd"},
			nil, "?p=p%40ss+w%26rd or /p@ss%20w&rd",
			"?p=[REDACTED] or /[REDACTED]",
		},
		"with its new line": {map[string]string{"k": "hunter2\n"}, nil, "bad hunter2", "bad [REDACTED]"},
		"flag and value":    {nil, []string{"password=s3same"}, "password=s3same, s3same", "[REDACTED], [REDACTED]"},
		"empty":             {map[string]string{"k": ""}, []string{""}, "as it was", "as it was"},
	} {
		if got := NewRedactor(tc.secrets, storage.Capability{MountFlags: tc.flags}).Text(tc.in); got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}

// TestNoSecretIsLeft puts random secrets into random text.
func TestNoSecretIsLeft(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// These letters are not in the replacement, so the replacement cannot form a secret.
		secrets := rapid.MapOf(rapid.StringMatching(`[a-z]{1,3}`), rapid.StringMatching(`[a-f "\\&%]{0,12}`)).Draw(t,
			"secrets")
		var b strings.Builder
		for _, v := range secrets {
			b.WriteString(rapid.StringMatching(`[g-z ]{0,5}`).Draw(t, "between") + v)
		}
		got := NewRedactor(secrets).Text(b.String())
		for _, v := range secrets {
			if len(v) >= shortSecret && strings.Contains(got, v) {
				t.Fatalf("%q is in %q", v, got)
			}
		}
	})
}
