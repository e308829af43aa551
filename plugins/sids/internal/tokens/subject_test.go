package tokens

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/pannier/pannier/sdk/identity"
)

// TestSubject parses a formatted description, for all names without a bracket.
func TestSubject(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[^][/\n]{1,20}`)
		s := identity.Subject{
			Cluster: name.Draw(t, "cluster"), Node: name.Draw(t, "node"), Namespace: name.Draw(t, "namespace"),
			Workload: rapid.StringMatching(`[^][\n]{1,20}`).Draw(t, "workload"), Service: name.Draw(t, "service"),
		}
		if got := subjectOf(describe(s)); got != s {
			t.Fatalf("got %+v, want %+v", got, s)
		}
	})
}

// TestDescribable checks which subjects are refused: those that a description cannot represent.
func TestDescribable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[][/ a]{0,3}`)
		s := identity.Subject{
			Cluster: name.Draw(t, "cluster"), Node: name.Draw(t, "node"), Namespace: name.Draw(t, "namespace"),
			Workload: name.Draw(t, "workload"), Service: name.Draw(t, "service"),
		}
		if got, want := describable(s), subjectOf(describe(s)) == s && s != (identity.Subject{}); got != want {
			t.Fatalf("%+v: got %t, want %t", s, got, want)
		}
	})
	for _, name := range []string{"", "a[", "a]", "[a] ["} {
		for n := range 5 {
			all := []string{"c1", "n1", "default", "web-1", "web"}
			all[n] = name
			s := identity.Subject{Cluster: all[0], Node: all[1], Namespace: all[2], Workload: all[3], Service: all[4]}
			if describable(s) {
				t.Errorf("%q can be described", all)
			}
		}
	}
}

// TestForeign checks that the description of a foreign token is not recognised as ours.
func TestForeign(t *testing.T) {
	for _, description := range []string{
		"", "Bootstrap Token (Global Management)", "token created via login", `token created via login: {"pod": "x"}`,
		"token created via login: {", "_nomad_si [c1] [n1] [default/web-1] [web]", "_pannier_si [c1] [n1] [default/web-1]",
		"_pannier_si [c1] [n1] [web-1] [web]", " _pannier_si [c1] [n1] [default/web-1] [web]",
		"_pannier_si [] [n1] [default/web-1] [web]",
	} {
		if got := subjectOf(description); got != (identity.Subject{}) {
			t.Errorf("%q: got %+v", description, got)
		}
	}
}
