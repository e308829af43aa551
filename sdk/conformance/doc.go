// Package conformance proves a plugin's binary: it starts it as a host does and tells,
// check by check, what holds and what does not, with what the author does about it.
// `pannier plugin test BINARY` is the same from a command line; docs/conformance.md lists
// the checks.
//
//	func TestConformance(t *testing.T) {
//		conformance.Storage(t, conformance.Config{Binary: "./my-plugin", Driver: conformance.Driver("/run/my-driver.sock")})
//	}
//
// A check that needs a backend (a CSI driver, a Consul) is skipped where Config names
// none, and says so. All others run with backends of the kit's own: one that is away, one
// that never answers.
//
// It imports the SDK only. It leaves no process and no file, whatever the plugin does:
// every process leads a group and carries a mark, and is killed with its children.
package conformance
