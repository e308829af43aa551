package acl

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
)

func TestParseRefuses(t *testing.T) {
	for pair := range slices.Chunk([]string{
		``, "line 1: it says nothing",
		"namespace \"a\" {\n  policy = \n}", "line 2:",
		"node { policy = \"read\" }\nquota { policy = \"read\" }", `line 2: unsupported block "quota"`,
		`namespaces "a" { policy = "read" }`, `unsupported block "namespaces"; did you mean "namespace"?`,
		"namespace \"a\" {\n  capabilitys = []\n}",
		`line 2: namespace "a": unsupported argument "capabilitys"; did you mean "capabilities"?`,
		"namespace \"a\" {\n  capabilities = [\"csi-read-volumes\"]\n}",
		`line 2: namespace "a": capabilities: "csi-read-volumes" is not one of`,
		`namespace "a" { capabilities = ["csi-read-volumes"] }`, `did you mean "csi-read-volume"?`,
		`namespace "a" { policy = "wirte" }`, `"wirte" is not one of deny, read, write; did you mean "write"?`,
		`node { policy = "list" }`, `node: policy: "list" is not one of deny, read, write`,
		`plugin {}`, `plugin: policy: is required`,
		`namespace "a" {}`, `namespace "a": policy, capabilities or services is missing`,
		"namespace \"a\" {\n  services = [\"shop-*\", \"a/b\"]\n}",
		`line 2: namespace "a": services: "a/b": the name of a service has`,
		`namespace "a" { services = "shop" }`, `namespace "a": services: a list of strings is required`,
		`node { policy = 3 }`, `node: policy: a string is required`,
		`node { policy = null }`, `node: policy: is required`,
		`namespace "a" { capabilities = "deny" }`, `a list of strings is required`,
		`namespace "a" { capabilities = [[]] }`, `element 0: a string is required`,
		`node { policy = x }`, `node: policy: variables are not allowed here`,
		"node { policy = \"read\" }\nnode { policy = \"read\" }", `line 2: node: block given twice, first on line 1`,
		"namespace \"a\" { policy = \"read\" }\nnamespace \"a\" { policy = \"deny\" }",
		`line 2: namespace "a": block given twice`,
		`namespace "a b" { policy = "read" }`, `letters, digits and - _ . only`,
		`namespace { policy = "read" }`, `line 1: missing name`,
		`namespace "a" "b" { policy = "read" }`, `line 1: `,
		`{"node": {"polcy": "read"}}`, `unsupported argument "polcy"; did you mean "policy"?`,
		"quota {}\nnode { policy = \"x\" }", `line 1: unsupported block "quota"; line 2: node: policy`,
		"#" + strings.Repeat("x", maxText), "more than 65536 bytes",
	}, 2) {
		text, says := pair[0], pair[1]
		_, err := Parse(text)
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
}

// parse returns the rules of valid policies.
func parse(t *testing.T, texts ...string) *Rules {
	t.Helper()
	var all []Policy
	for _, text := range texts {
		p := check.Must(Parse(text))(t)
		all = append(all, p)
	}
	return Merge(all...)
}

func TestNamespaces(t *testing.T) {
	for name, c := range map[string]struct {
		policies []string
		yes, no  []string // NAMESPACE CAPABILITY
	}{
		"nothing": {nil, nil, []string{"default csi-list-volume", "default deny"}},
		"read": {
			[]string{`namespace "a" { policy = "read" }`},
			[]string{
				"a csi-read-volume", "a csi-list-volume", "a read-workload",
				"a list-workloads",
			},
			[]string{"a csi-write-volume", "a csi-mount-volume", "a submit-workload", "b csi-read-volume", "ab csi-read-volume"},
		},
		"write": {
			[]string{`namespace "a" { policy = "write" }`},
			[]string{
				"a csi-read-volume", "a csi-write-volume", "a csi-mount-volume",
				"a submit-workload",
			},
			[]string{"b submit-workload"},
		},
		"capabilities": {
			[]string{`namespace "a" { capabilities = ["csi-read-volume"] }`},
			[]string{"a csi-read-volume", "a csi-list-volume"},
			[]string{"a read-workload", "a csi-write-volume"},
		},
		"both": {
			[]string{"namespace \"a\" {\npolicy = \"read\"\ncapabilities = [\"csi-mount-volume\"]\n}"},
			[]string{"a csi-read-volume", "a csi-mount-volume"},
			[]string{"a submit-workload"},
		},
		"json": {
			[]string{`{"namespace": {"a": {"policy": "read"}}}`},
			[]string{"a csi-read-volume"},
			[]string{"b csi-read-volume"},
		},
		"union": {[]string{
			`namespace "a" { policy = "read" }`,
			`namespace "a" { capabilities = ["submit-workload"] }`,
		}, []string{"a csi-read-volume", "a submit-workload"}, []string{"a csi-write-volume"}},
		"deny wins": {
			[]string{`namespace "a" { policy = "write" }`, `namespace "a" { policy = "deny" }`},
			nil,
			[]string{"a csi-read-volume", "a submit-workload"},
		},
		"deny first": {
			[]string{`namespace "a" { policy = "deny" }`, `namespace "a" { policy = "write" }`},
			nil,
			[]string{"a csi-read-volume"},
		},
		"in one": {
			[]string{"namespace \"a\" {\npolicy = \"write\"\ncapabilities = [\"deny\"]\n}"},
			nil,
			[]string{"a csi-read-volume"},
		},
		"all": {
			[]string{`namespace "*" { policy = "read" }`},
			[]string{"a csi-read-volume", "default csi-read-volume"},
			[]string{"a csi-write-volume"},
		},
		"exact counts": {
			[]string{`namespace "*" { policy = "write" }`, `namespace "a" { policy = "read" }`},
			[]string{"b csi-write-volume", "a csi-read-volume"},
			[]string{"a csi-write-volume"},
		},
		"exact deny": {
			[]string{`namespace "prod*" { policy = "write" }`, `namespace "prod-db" { policy = "deny" }`},
			[]string{"prod-web csi-write-volume"},
			[]string{"prod-db csi-read-volume"},
		},
		"longest": {
			[]string{
				`namespace "*" { policy = "deny" }`, `namespace "prod*" { policy = "read" }`,
				`namespace "prod-d*" { policy = "write" }`,
			},
			[]string{"prod-db csi-write-volume", "prod csi-read-volume"},
			[]string{"prod-x csi-write-volume", "dev csi-read-volume"},
		},
		"equally exact": {
			[]string{`namespace "a*" { policy = "write" }`, `namespace "*z" { policy = "deny" }`},
			[]string{"ab csi-write-volume"},
			[]string{"az csi-read-volume", "bz csi-read-volume"},
		},
		"inside": {
			[]string{`namespace "a*c*e" { policy = "read" }`},
			[]string{"ace csi-read-volume", "abcde csi-read-volume", "accce csi-read-volume"},
			[]string{
				"ae csi-read-volume",
				"aec csi-read-volume", "xace csi-read-volume",
			},
		},
		"overlap": {
			[]string{`namespace "ab*ba" { policy = "read" }`},
			[]string{"abba csi-read-volume"},
			[]string{"aba csi-read-volume"},
		},
		"two stars": {
			[]string{`namespace "a**b" { policy = "read" }`},
			[]string{"ab csi-read-volume"},
			[]string{"a csi-read-volume"},
		},
		"a dot is none": {
			[]string{`namespace "a.c" { policy = "read" }`},
			[]string{"a.c csi-read-volume"},
			[]string{"abc csi-read-volume"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			rules := parse(t, c.policies...)
			check := func(all []string, want bool) {
				for _, one := range all {
					namespace, capability, _ := strings.Cut(one, " ")
					if got := rules.AllowNamespace(namespace, Capability(capability)); got != want {
						t.Errorf("%s: %v", one, got)
					}
				}
			}
			check(c.yes, true)
			check(c.no, false)
		})
	}
}

func TestServices(t *testing.T) {
	for name, c := range map[string]struct {
		policies []string
		yes, no  []string // NAMESPACE SERVICE
	}{
		"none by default": {[]string{`namespace "a" { policy = "write" }`}, nil, []string{"a web", "a *", "a "}},
		"listed": {
			[]string{"namespace \"a\" {\npolicy = \"write\"\nservices = [\"web\", \"shop-*\"]\n}"},
			[]string{"a web", "a shop-cart", "a shop-"},
			[]string{"a webs", "a payments", "a shop", "a Web", "b web"},
		},
		"all":           {[]string{`namespace "a" { services = ["*"] }`}, []string{"a payments"}, []string{"b payments"}},
		"none of these": {[]string{`namespace "a" { services = [] }`}, nil, []string{"a web"}},
		"added": {
			[]string{
				`namespace "a" { policy = "write" }`, `namespace "a" { services = ["x"] }`,
				`namespace "a" { services = ["y"] }`,
			},
			[]string{"a x", "a y"},
			[]string{"a z"},
		},
		"deny wins": {
			[]string{`namespace "a" { services = ["*"] }`, `namespace "a" { policy = "deny" }`},
			nil,
			[]string{"a web"},
		},
		"exact counts": {
			[]string{`namespace "*" { services = ["*"] }`, `namespace "a" { policy = "write" }`},
			[]string{"b web"},
			[]string{"a web"},
		},
		"equally exact": {
			[]string{`namespace "a*" { services = ["x"] }`, `namespace "*z" { services = ["y"] }`},
			[]string{"az x", "az y", "ab x"},
			[]string{"ab y", "az z"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			rules := parse(t, c.policies...)
			for want, all := range map[bool][]string{true: c.yes, false: c.no} {
				for _, one := range all {
					namespace, service, _ := strings.Cut(one, " ")
					if got := rules.AllowService(namespace, service); got != want {
						t.Errorf("%s: %v", one, got)
					}
				}
			}
		})
	}
}

func TestAreas(t *testing.T) {
	for name, c := range map[string]struct {
		policies []string
		want     Level // the highest level that is allowed
	}{
		"nothing": {nil, None},
		"another": {[]string{`node { policy = "write" }`}, None},
		"list":    {[]string{`plugin { policy = "list" }`}, List},
		"read":    {[]string{`plugin { policy = "read" }`}, Read},
		"write":   {[]string{`plugin { policy = "write" }`}, Write},
		"the most": {
			[]string{`plugin { policy = "list" }`, `plugin { policy = "write" }`, `plugin { policy = "read" }`},
			Write,
		},
		"deny wins": {
			[]string{`plugin { policy = "write" }`, `plugin { policy = "deny" }`, `plugin { policy = "write" }`},
			None,
		},
	} {
		t.Run(name, func(t *testing.T) {
			rules := parse(t, c.policies...)
			for _, level := range []Level{List, Read, Write} {
				if got := rules.Allow(Plugin, level); got != (level <= c.want) {
					t.Errorf("%s: %v", level, got)
				}
			}
		})
	}
}

// TestWithin: rules of calls that come over a bound node, whatever their policies.
func TestWithin(t *testing.T) {
	team, err := Parse(`namespace "*" { policy = "write" }
node { policy = "write" }`)
	check.NoError(t, err)
	for name, r := range map[string]*Rules{"management": Management, "a policy": Merge(team)} {
		bound := r.Within([]string{"dev", "shop-*"})
		for namespace, want := range map[string]bool{
			"dev": true, "shop-1": true, "shop": false, "prod": false,
			"dev2": false,
		} {
			if got := bound.AllowNamespace(namespace, SubmitWorkload); got != want {
				t.Errorf("%s in %q: %t", name, namespace, got)
			}
			if bound.AllowService(namespace, "web") && !want {
				t.Errorf("%s has services in %q", name, namespace)
			}
		}
		if bound.IsManagement() || bound.Allow(Node, Write) || !bound.Allow(Node, Read) || !r.Allow(Node, Write) {
			t.Errorf("%s: areas", name)
		}
		if r.Within(nil) != r {
			t.Errorf("%s is bounded by nothing", name)
		}
	}
}

func TestManagement(t *testing.T) {
	if !Management.IsManagement() || !Management.AllowNamespace("x", SubmitWorkload) ||
		!Management.Allow(Operator, Write) || !Management.AllowSomewhere(CSIWriteVolume) ||
		!Management.AllowService("x", "web") {
		t.Error("management does not allow everything")
	}
	for _, none := range []*Rules{parse(t), {}, nil} {
		if none.IsManagement() || none.AllowSomewhere(CSIListVolume) || none.AllowNamespace("default", CSIListVolume) ||
			none.Allow(Plugin, List) || none.AllowService("default", "web") {
			t.Errorf("%+v allows something", none)
		}
	}
	if !parse(t, `namespace "x*" { policy = "read" }`).AllowSomewhere(CSIListVolume) {
		t.Error("a pattern allows nothing anywhere")
	}
}

// Any text is parsed or refused, and never allows what no policy names.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		`namespace "a" { policy = "read" }`, `{"node": {"policy": "write"}}`, `plugin {`,
		`namespace "*" { capabilities = ["deny"] }`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Parse(text)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		rules := Merge(p)
		if !strings.Contains(text, "write") && (rules.Allow(Node, Write) || rules.AllowNamespace("a", CSIWriteVolume)) &&
			!strings.Contains(text, `\`) {
			t.Fatalf("%q allows writing", text)
		}
	})
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"web", "web", true},
		{"web", "web-1", false},
		{"web-*", "web-", true},
		{"*-prod", "web-prod", true},
		{"a*a", "a", false},
		{"a*b*c", "a-b-c", true},
		{"a*b*c", "a-c", false},
		{"*b*b*", "b", false},
		{"*b*b*", "abab", true},
		{"*ab*ba*", "aba", false},
	} {
		if matches(c.pattern, c.name) != c.want {
			t.Errorf("%q matches %q: %t", c.pattern, c.name, !c.want)
		}
	}
}
