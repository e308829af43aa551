// Package check has small helpers that the tests of all packages use.
package check

import (
	"testing"
	"time"
)

// Patience limits how long Eventually waits. It is long, so that a slow machine does not fail a test. A
// passing test does not wait for it.
const Patience = time.Minute

// interval is the pause between two polls.
const interval = 2 * time.Millisecond

// NoError ends the test if there is an error.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Must returns a function that returns the value, or ends the test if there is an error:
//
//	data := check.Must(os.ReadFile(path))(t)
func Must[T any](value T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		NoError(t, err)
		return value
	}
}

// Eventually polls until ok returns true, and ends the test if that takes longer than Patience. what describes the
// condition.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !ok(); time.Sleep(interval) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", Patience, what)
		}
	}
}
