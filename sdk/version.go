package sdk

import (
	"regexp"
	"runtime/debug"
	"strings"
)

// BuildVersion returns the version of this build for Info. stamped is what the linker has set, such as the output
// of git describe; empty: the version of the main module, as go install MODULE@VERSION records it.
//
// What is not a semantic version becomes the build metadata of one, which has no precedence: commits after v1.2.3
// are 1.2.3+4-gabcdef0, which a host that asks for ">= 1.2.3" takes. A build of no release is 0.0.0+ and what is known.
func BuildVersion(stamped string) string {
	if info, ok := debug.ReadBuildInfo(); ok && stamped == "" {
		stamped = info.Main.Version
	}
	if m := described.FindStringSubmatch(stamped); m != nil {
		if m[2] != "" {
			m[1] += "+"
		}
		return m[1] + m[2]
	}
	return "0.0.0+" + strings.Trim(noMetadata.ReplaceAllString(stamped, "-"), "-")
}

var (
	// described matches a semantic version, with what git describe adds to it.
	described = regexp.MustCompile(
		`^v?([0-9]+\.[0-9]+\.[0-9]+(?:-[0-9A-Za-z.-]+?)??)(?:[-+]([0-9]+-g[0-9a-f]+(?:-dirty)?|dirty))?$`)
	noMetadata = regexp.MustCompile(`[^0-9A-Za-z.-]+`)
)
