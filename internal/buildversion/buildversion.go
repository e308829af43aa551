// Package buildversion tells which version of the root module a program was built from.
package buildversion

import "runtime/debug"

// Of returns stamped, which the linker has set (-X main.version=v1.2.3), or the version that go install MODULE@VERSION
// has recorded; "dev" if there is neither.
func Of(stamped string) string {
	if stamped != "" {
		return stamped
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "dev"
}
