package conformance_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/pannier/pannier/sdk/conformance"
)

var update = flag.Bool("update", false, "rewrite the table in docs/conformance.md")

const page = "../../docs/conformance.md"

// The table of checks in docs/conformance.md is generated: go test ./sdk/conformance -run TestPage -update.
func TestPage(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- checks -->\n", "<!-- end of checks -->"
	before, rest, found := strings.Cut(string(text), begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no %q … %q", page, begin, end)
	}
	want := before + begin + table() + end + after
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(text) != want {
		t.Errorf("%s does not match the checks: go test ./sdk/conformance -run TestPage -update", page)
	}
}

func table() string {
	var out strings.Builder
	out.WriteString("\n| check | a plugin that passes | when it fails |\n|---|---|---|\n")
	for _, c := range conformance.Checks() {
		fmt.Fprintf(&out, "| `%s` | %s | %s |\n", c.ID, cell(c.Says), cell(c.Fix))
	}
	out.WriteByte('\n')
	return out.String()
}

func cell(text string) string { return strings.ReplaceAll(text, "|", "\\|") }
