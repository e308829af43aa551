package sdk

import (
	"context"
	"regexp"
	"runtime/debug"
	"strings"

	"google.golang.org/grpc"
)

// Info identifies a plugin.
type Info struct {
	Name    string // such as "csi-bridge": its name in the host's configuration and messages
	Version string // semantic version without a leading v
}

// Plugin is an implementation together with its kind. The kind's package makes it, such as storage.Plugin.
type Plugin struct {
	// Kind is the kind's protocol with its version, such as "storage.v1".
	Kind string
	// Impl is the author's value. The SDK looks for the optional interfaces with As.
	Impl any
	// Register adds the kind's service to the plugin's gRPC server.
	Register func(grpc.ServiceRegistrar)
	// Finish, if set, ends what the kind does outside calls. It is called once, when no call is in flight, before the
	// implementation is closed.
	Finish func()
	// Health, if set, is asked before the implementation's HealthReporter: its error says why the plugin is unhealthy.
	Health func() error
}

// Validator is implemented by a plugin that can check a configuration. config is the body of the agent's plugin
// "NAME" { config { } } block as a JSON object, "{}" if there is none. Validate changes nothing. Its error names
// the wrong key, and reaches the host as InvalidArgument unless it is a gRPC status.
type Validator interface {
	Validate(ctx context.Context, config []byte) error
}

// Configurer is implemented by a plugin that has a configuration. Configure replaces it, before the first call and
// possibly later, while calls run; if it fails, the old one stays. A plugin without a Configurer refuses every
// key.
type Configurer interface {
	Configure(ctx context.Context, config []byte) error
}

// HealthReporter is implemented by a plugin that can be unhealthy while it runs. Health is called every 5 s and
// has 5 s to answer; its error says why the plugin is unhealthy.
type HealthReporter interface {
	Health(ctx context.Context) error
}

// BuildVersion returns the version of this build for Info. stamped is what the linker has set, such as the output
// of git describe; if it is empty, the version of the main module is used, as go install MODULE@VERSION records
// it.
//
// Anything beyond a semantic version becomes build metadata, which has no precedence: commits after v1.2.3 give
// 1.2.3+4-gabcdef0, which satisfies a host that asks for ">= 1.2.3". Without a semantic version it returns 0.0.0+
// and stamped.
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
	// described matches a semantic version, optionally with what git describe appends to it.
	described = regexp.MustCompile(
		`^v?([0-9]+\.[0-9]+\.[0-9]+(?:-[0-9A-Za-z.-]+?)??)(?:[-+]([0-9]+-g[0-9a-f]+(?:-dirty)?|dirty))?$`)
	noMetadata = regexp.MustCompile(`[^0-9A-Za-z.-]+`)
)
