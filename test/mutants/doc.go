// Command mutants plants bugs, one at a time, and checks that the test that guards the broken promise fails.
//
// A planted bug, a mutant, is an entry of the table: the promise that it breaks, a declaration with the code to
// replace, and the test that must fail. The code is found by its tokens, so that it can be moved to another file, laid
// out anew and get other names without an edit of the table. The changed file exists in an overlay of the go command
// only (go help build, -overlay). The overlay also applies to the programs that the test builds and runs (package
// testbin), which are kept apart from the others.
//
// A mutant is caught if its test passes on the code as it is, and fails with the mutant: by a failed test, not by a
// build error, a panic or the test's own time limit. Where faults are drawn at random, the test runs once per seed, the
// rate is printed, and one seed that fails is enough.
//
//	make mutants                     all of them; the last line is "mutants: N planted, M caught"
//	make mutants ONLY='lease|fence'  those whose names match
//
// The test of this package checks the table in make test: each code to replace is there exactly once, each test
// exists, and TABLE.md lists each mutant (make docs writes it). So a change of the code that a mutant is planted in has
// to change the mutant too.
package main
