// Package check has the few checks that tests of every package share.
package check

import (
	"testing"
	"time"
)

// Patience bounds how long Eventually waits. It is long, since a busy machine is no
// failure; a test that passes does not wait for it.
const Patience = time.Minute

// interval is the pause between two looks.
const interval = 2 * time.Millisecond

// NoError ends the test at an error.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Must returns a function that gives the value, or ends the test at the error:
//
//	data := check.Must(os.ReadFile(path))(t)
func Must[T any](value T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		NoError(t, err)
		return value
	}
}

// Eventually polls until ok returns true, and ends the test when that takes longer than
// Patience; what says what was waited for.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !ok(); time.Sleep(interval) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", Patience, what)
		}
	}
}
