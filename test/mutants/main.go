package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pannier/pannier/test/lib/gotest"
	"github.com/pannier/pannier/test/lib/testbin"
)

// mutant is a planted bug.
type mutant struct {
	// name identifies it, such as lease-too-long.
	name string
	// promise is the promise that it breaks.
	promise string
	// in is the folder of a package, such as cluster/state, and decl the name of a declaration in it: a function, a method
	// as T.name, a type, a variable or a constant. It has the code old exactly once; new takes its place.
	in, decl, old, new string
	// pkg is the package, such as ./cluster/state, with the test that must fail; run is the regexp of go test's -run.
	pkg, run string
	// args are flags of the test binary.
	args []string
	// seeds is the number of seeds with which the test runs (flag -seed); 0: it has no seed.
	seeds int
}

// suite reports whether a mutant needs real agents.
func (m mutant) suite() bool { return strings.HasPrefix(m.pkg, "./test/suite/") }

// sideBySide is the number of mutants that are tested in parallel. Tests of real agents are sensitive to
// timing and run one at a time.
const sideBySide = 2

func main() {
	only := flag.String("run", "", "regexp of the names of the mutants to plant; empty: all")
	flag.Parse()
	gotest.Main("mutants", func(ctx context.Context) (bool, error) { return run(ctx, *only) })
}

// run plants the mutants whose names match, the cheap ones first, and reports whether all were caught.
func run(ctx context.Context, only string) (ok bool, err error) {
	names, err := regexp.Compile(only)
	if err != nil {
		return false, err
	}
	chosen := slices.DeleteFunc(slices.Clone(all()), func(m mutant) bool { return !names.MatchString(m.name) })
	slices.SortStableFunc(chosen, func(a, b mutant) int { return cmp.Compare(cost(a), cost(b)) })
	dir, err := os.MkdirTemp("", "pannier-mutants-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	s := &session{root: testbin.Root(), dir: dir, plain: map[string]func() verdict{}}

	var missed []string
	var mu sync.Mutex
	plant := func(m mutant) {
		began := time.Now()
		v := s.plant(ctx, m)
		mu.Lock()
		defer mu.Unlock()
		word := "caught"
		if !v.caught {
			word, missed = "MISSED", append(missed, m.name+": "+v.why)
		}
		fmt.Printf("%s  %-28s %5.0f s  %s: %s\n", word, m.name, time.Since(began).Seconds(), m.test(), v.why)
	}
	for n := 0; n < len(chosen) && ctx.Err() == nil; {
		end := n + 1
		var beside sync.WaitGroup
		if !chosen[n].suite() {
			for end < len(chosen) && !chosen[end].suite() {
				end++
			}
		}
		slots := make(chan struct{}, sideBySide)
		for _, m := range chosen[n:end] {
			slots <- struct{}{}
			beside.Go(func() {
				defer func() { <-slots }()
				plant(m)
			})
		}
		beside.Wait()
		n = end
	}
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	slices.Sort(missed)
	for _, m := range missed {
		fmt.Println("missed:", m)
	}
	fmt.Printf("mutants: %d planted, %d caught\n", len(chosen), len(chosen)-len(missed))
	return len(missed) == 0, nil
}

// cost orders mutants: those of package tests, those that need real agents, those that need several seeds of them.
func cost(m mutant) int {
	switch {
	case !m.suite():
		return 0
	default:
		return 1 + m.seeds
	}
}

// test names the test that must fail, for people.
func (m mutant) test() string { return strings.Join(append([]string{m.pkg, m.run}, m.args...), " ") }
