package sdk

import (
	"os"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/sdk/wire"
)

// stderr is the process's own, which the host has pointed at a file. go-plugin
// puts a pipe in os.Stderr's place, which nobody reads while there is no host.
var stderr = os.Stderr

// Logger is the plugin's logger: structured JSON that the host reads and writes
// into its own log under the plugin's name, at the host's level.
var Logger = sync.OnceValue(func() hclog.Logger {
	level := hclog.LevelFromString(os.Getenv(wire.EnvLogLevel))
	if level == hclog.NoLevel {
		level = hclog.Info
	}
	byHand := os.Getenv(wire.Handshake.MagicCookieKey) == "" // for a person to read
	return hclog.New(&hclog.LoggerOptions{Level: level, Output: stderr, JSONFormat: !byHand})
})
