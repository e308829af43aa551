package sdk

import (
	"context"

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
	// Health, if set, is asked before the implementation's HealthReporter: its error explains why the plugin is unhealthy.
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

// HealthReporter is implemented by a plugin that can be unhealthy while it runs. Health is called every 5 s and has 5 s
// to answer; its error explains why the plugin is unhealthy.
type HealthReporter interface {
	Health(ctx context.Context) error
}
