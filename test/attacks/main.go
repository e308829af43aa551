package main

import (
	"context"
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/pannier/pannier/test/lib/gotest"
	"github.com/pannier/pannier/test/lib/testbin"
)

// attack is something that must not work.
type attack struct {
	// who is the attacker, such as "a stranger on the network".
	who string
	// tries is what the attacker tries.
	tries string
	// stops is what stops it.
	stops string
	// pkg is the package with the test that makes the attack, such as ./test/suite/security; run is the regexp of go
	// test's -run, which may name subtests.
	pkg, run string
	// worked has the commit before the fix, and what the test printed there. It is empty if the attack never worked.
	worked string
	// remains is what the attacker still can do; empty: nothing known.
	remains string
}

// String names an attack in the output.
func (a attack) String() string { return fmt.Sprintf("%s: %s (%s %s)", a.who, a.tries, a.pkg, a.run) }

// root is the top directory of the checkout.
var root = testbin.Root()

func main() {
	only := flag.String("run", "", "regexp of the attacks to try, by attacker, text or test; empty: all")
	flag.Parse()
	gotest.Main("attacks", func(ctx context.Context) (bool, error) { return run(ctx, *only) })
}

// run tries the attacks that match, package after package, and reports whether all were tried and none worked.
func run(ctx context.Context, only string) (ok bool, err error) {
	want, err := regexp.Compile(only)
	if err != nil {
		return false, err
	}
	chosen := slices.DeleteFunc(all(), func(a attack) bool { return !want.MatchString(a.String()) })
	tried, worked, failed := 0, 0, 0
	for len(chosen) > 0 && ctx.Err() == nil {
		pkg := chosen[0].pkg
		var here, rest []attack
		for _, a := range chosen {
			if a.pkg == pkg {
				here = append(here, a)
			} else {
				rest = append(rest, a)
			}
		}
		chosen = rest
		out, ended := gotest.Command(ctx, root, nil, "go", "test", "-json", "-count=1", "-vet=off", "-timeout", "20m",
			"-run", alternatives(here), pkg).Output()
		events, err := gotest.Events(out)
		if err != nil {
			return false, err
		}
		failures := 0
		for _, a := range here {
			o := a.judge(events)
			fmt.Printf("%-9s %s%s\n", o, a, o.why)
			switch {
			case o.worked:
				worked++
				tried++
			case o.refused:
				tried++
				continue
			}
			failures++
		}
		if ended != nil && failures == 0 {
			fmt.Printf("FAILED    %s: %v, though no attack worked: run its tests\n", pkg, ended)
			failures++
		}
		failed += failures
	}
	fmt.Printf("attacks: %d tried, %d worked\n", tried, worked)
	return failed == 0, context.Cause(ctx)
}

// alternatives returns the regexp of -run for the tests of all these attacks, each once.
func alternatives(attacks []attack) string {
	var runs []string
	for _, a := range attacks {
		runs = append(runs, a.run)
	}
	slices.Sort(runs)
	return strings.Join(slices.Compact(runs), "|")
}

// outcome is what came of an attack; neither: it was not tried.
type outcome struct {
	worked, refused bool
	why             string
}

func (o outcome) String() string {
	switch {
	case o.worked:
		return "WORKED"
	case o.refused:
		return "refused"
	default:
		return "NOT TRIED"
	}
}

// judge reads what came of an attack's tests. A test that failed before it came to the subtest of the attack has not
// tried it.
func (a attack) judge(events []gotest.Event) outcome {
	o, said := outcome{why: ": no such test ran"}, map[string]string{}
	for _, e := range events {
		if gotest.Assertion.MatchString(e.Output) && said[e.Test] == "" {
			said[e.Test] = ": " + strings.TrimSpace(e.Output)
		}
		if e.Action == "build-fail" {
			return outcome{why: ": the test does not build: go vet the package"}
		}
		mine, part := a.matches(e.Test)
		switch {
		case mine && e.Action == "skip":
			return outcome{why: said[e.Test]}
		case mine && e.Action == "fail":
			if o.refused = false; !o.worked {
				o.worked, o.why = true, said[e.Test]
			}
		case mine && e.Action == "pass" && !o.worked:
			o = outcome{refused: true}
		case part && e.Action == "fail" && !o.worked && !o.refused:
			o.why = said[e.Test]
		}
	}
	return o
}

// matches reports whether a test is the attack's or in it (mine), or one that has it as its subtest (part).
func (a attack) matches(test string) (mine, part bool) {
	if test == "" {
		return false, false
	}
	patterns, names := strings.Split(a.run, "/"), strings.Split(test, "/")
	for n := range min(len(patterns), len(names)) {
		if !regexp.MustCompile(patterns[n]).MatchString(names[n]) {
			return false, false
		}
	}
	return len(names) >= len(patterns), len(names) < len(patterns)
}
