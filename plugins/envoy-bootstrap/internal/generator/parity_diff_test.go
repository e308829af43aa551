package generator

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pannier/pannier/test/lib/check"
)

// differences are the only allowed differences between the output of Consul's command and ours.
var differences = []struct {
	name string
	// rows and path limit a difference to rows, by name, and to a place in the bootstrap.
	rows, path string
	reason     string
}{
	{
		name: "one service instead of a list", path: `^dynamic_resources\.ads_config\.grpc_services$`,
		reason: "the command prints one object where the API has a list. Envoy's parser takes it for a list of one; others refuse it",
	},
	{
		name: "a gateway's cluster", rows: `^gateway by id alone$`,
		path:   `^(node\.cluster|stats_config\.stats_tags\[\d+\]\.fixed_value)$`,
		reason: "told nothing but an id, the command takes it for the cluster's name, and with -gateway the service's name. We always take the service's name, by which metrics can be added up",
	},
	{
		name: "readiness that nobody asked for", rows: `^ingress gateway without ready$`,
		path:   `^static_resources\.(clusters|listeners)`,
		reason: "with -gateway ingress the command listens on 127.0.0.1:8443, the default of its flag -address. We listen where the host has allocated a port and nowhere else",
	},
	{
		name: "the CA that is trusted", rows: `^xds with TLS and no CA$`,
		path:   `\.validation_context\.trusted_ca\.inline_string$`,
		reason: "without a CA file the command prints an empty CA, so that the proxy would give its token to any server. We take the mesh's CA from the agent",
	},
	{
		name: "TLS for others than Prometheus", rows: `^prometheus with TLS (and stats|in a template)$`,
		path:   `^static_resources\.(listeners\[[12]\]\.filter_chains\[0\]\.transport_socket|secrets\[[2-5]\])$`,
		reason: "the command gives the TLS for Prometheus to the listeners of statistics and of readiness too, and prints its secrets once for each: Envoy refuses two of one name. We give it to the one that it is for",
	},
}

// explain returns the name of the difference that allows this deviation, or "".
func explain(row, path string) string {
	for _, d := range differences {
		if regexp.MustCompile(d.rows).MatchString(row) && regexp.MustCompile(d.path).MatchString(path) {
			return d.name
		}
	}
	return ""
}

// diff is one place where two bootstraps differ. A side without a value there is nil.
type diff struct {
	path         string
	theirs, ours any
}

// diffBootstraps compares the meaning of the two files for Envoy: both are parsed into Envoy's types, so that
// spelling and order of keys do not matter.
func diffBootstraps(t *testing.T, theirs, ours []byte) []diff {
	t.Helper()
	var diffs []diff
	var tree map[string]any
	if err := json.Unmarshal(theirs, &tree); err != nil {
		t.Fatalf("Consul's bootstrap: %v\n%s", err, theirs)
	}
	dynamic, _ := tree["dynamic_resources"].(map[string]any) // a template may have none
	ads, _ := dynamic["ads_config"].(map[string]any)
	if one, ok := ads["grpc_services"].(map[string]any); ok {
		diffs = append(diffs, diff{path: "dynamic_resources.ads_config.grpc_services", theirs: "an object", ours: "a list"})
		ads["grpc_services"] = []any{one}
	}
	theirs, err := json.Marshal(tree)
	check.NoError(t, err)
	return append(diffs, diffTrees("", canonical(t, "Consul's", theirs), canonical(t, "our", ours))...)
}

// canonical parses a bootstrap strictly and returns every field that has a value. One with unknown fields is returned
// as it is.
func canonical(t *testing.T, whose string, text []byte) any {
	t.Helper()
	var b bootstrapv3.Bootstrap
	if err := protojson.Unmarshal(text, &b); err != nil {
		lenient := protojson.UnmarshalOptions{DiscardUnknown: true}
		var asIs any
		if lenient.Unmarshal(text, &b) != nil || json.Unmarshal(text, &asIs) != nil {
			t.Fatalf("%s bootstrap: %v\n%s", whose, err, text)
		}
		return asIs
	}
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(&b)
	check.NoError(t, err)
	var tree any
	check.NoError(t, json.Unmarshal(raw, &tree))
	return tree
}

func diffTrees(path string, theirs, ours any) []diff {
	var diffs []diff
	switch a := theirs.(type) {
	case map[string]any:
		b, ok := ours.(map[string]any)
		if !ok {
			break
		}
		keys := maps.Clone(a)
		maps.Copy(keys, b)
		for _, k := range slices.Sorted(maps.Keys(keys)) {
			diffs = append(diffs, diffTrees(strings.TrimPrefix(path+"."+k, "."), a[k], b[k])...)
		}
		return diffs
	case []any:
		b, ok := ours.([]any)
		if !ok {
			break
		}
		for i := range max(len(a), len(b)) {
			var x, y any
			if i < len(a) {
				x = a[i]
			}
			if i < len(b) {
				y = b[i]
			}
			diffs = append(diffs, diffTrees(fmt.Sprintf("%s[%d]", path, i), x, y)...)
		}
		return diffs
	}
	if theirs == ours {
		return nil
	}
	return []diff{{path: path, theirs: theirs, ours: ours}}
}

// TestDiffTrees checks that the comparison finds differences.
func TestDiffTrees(t *testing.T) {
	read := func(text string) any {
		var tree any
		check.NoError(t, json.Unmarshal([]byte(text), &tree))
		return tree
	}
	for name, tc := range map[string]struct {
		a, b string
		want []string
	}{
		"same":            {`{"a": [1, {"b": null}]}`, `{"a": [1, {"b": null}]}`, nil},
		"value":           {`{"a": {"b": 1}}`, `{"a": {"b": 2}}`, []string{"a.b"}},
		"missing":         {`{"a": 1}`, `{}`, []string{"a"}},
		"added":           {`{}`, `{"a": {"b": 1}}`, []string{"a"}},
		"longer list":     {`{"a": [1]}`, `{"a": [1, 2]}`, []string{"a[1]"}},
		"shorter list":    {`{"a": [1, 2]}`, `{"a": [1]}`, []string{"a[1]"}},
		"order of a list": {`[1, 2]`, `[2, 1]`, []string{"[0]", "[1]"}},
		"type":            {`{"a": [1]}`, `{"a": {"b": 1}}`, []string{"a"}},
	} {
		var got []string
		for _, d := range diffTrees("", read(tc.a), read(tc.b)) {
			got = append(got, d.path)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}
