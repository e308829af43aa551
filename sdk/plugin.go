package sdk

import (
	"context"
	"regexp"
	"runtime/debug"
	"strings"

	"google.golang.org/grpc"
)

// Info is who a plugin is.
type Info struct {
	Name    string // such as "csi-bridge": what the host's configuration and messages call it
	Version string // semantic version without a leading v
}

// Plugin is an implementation with the kind that it serves. A kind's package
// makes it, such as storage.Plugin.
type Plugin struct {
	// Kind is the kind's protocol with its version, such as "storage.v1".
	Kind string
	// Impl is the author's value. The optional interfaces are looked for on it.
	Impl any
	// Register adds the kind's service to the plugin's gRPC server.
	Register func(grpc.ServiceRegistrar)
}

// Validator is implemented by a plugin that can tell whether a configuration is
// right. config is the body of the agent's plugin "NAME" { config { } } block as a
// JSON object, "{}" where there is none. Nothing is changed. An error's text
// names the key that is wrong; it reaches the host as InvalidArgument unless it
// is a gRPC status.
type Validator interface {
	Validate(ctx context.Context, config []byte) error
}

// Configurer is implemented by a plugin that has a configuration. Configure
// replaces it, before the first call and possibly later, while calls run; when it
// fails, the old one stays. A plugin that has none refuses every key.
type Configurer interface {
	Configure(ctx context.Context, config []byte) error
}

// HealthReporter is implemented by a plugin that can be unwell while it runs.
// Health is called every 5 s and has 5 s to answer; its error's text says why.
type HealthReporter interface {
	Health(ctx context.Context) error
}

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
