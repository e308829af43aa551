// Package plugintest tests a plugin in the test's own process: the author's
// implementation behind the real adapter and the real protocol, with no process, no
// host and no files.
//
//	func TestMine(t *testing.T) {
//		client := plugintest.Storage(t, &impl{})
//		err := client.Stage(t.Context(), driver, req)
//		...
//	}
//
// What a process must do (start, stop, survive SIGKILL, keep its secrets) is tested with
// the built binary, by sdk/conformance.
package plugintest
