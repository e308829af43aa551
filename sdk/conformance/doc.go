// Package conformance tests a plugin's binary: it starts the binary as a host does, and reports for each check
// whether it passed and, if not, how to correct the plugin. `pannier agent plugin test BINARY` does the same from a
// command line; CHECKS.md lists the checks.
//
//	func TestConformance(t *testing.T) {
//		conformance.Test(t, conformance.Config{Binary: "./my-plugin", Driver: conformance.Driver("/run/my-driver.sock")})
//	}
//
// A check that needs a real backend (a CSI driver, a Consul) is reported as skipped if Config has none. All others
// run with the kit's own backends, such as one that is unreachable and one that never answers.
//
// The kit leaves no process and no file, whatever the plugin does: every process leads a group and carries a mark,
// and is killed with its children.
package conformance
