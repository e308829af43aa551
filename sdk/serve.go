package sdk

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/sdk/wire"
)

// loadTLS is go-plugin's ServeConfig.TLSProvider: it reads the bundle that the host made for this process. The host
// removes the file once the plugin has answered.
func loadTLS() (*tls.Config, error) {
	path := os.Getenv(wire.EnvTLSBundle)
	if path == "" {
		return nil, errors.New("the host passed no TLS bundle: " + wire.EnvTLSBundle + " is not set")
	}
	bundle, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the TLS bundle: %w", err)
	}
	defer clear(bundle)
	config, err := wire.ServerTLS(bundle)
	if err != nil {
		return nil, err
	}
	// go-plugin replaces os.Stdout and os.Stderr just before it accepts connections, so this waits for the first one.
	redirect := sync.OnceFunc(keepOutput)
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		redirect()
		return nil, nil // config
	}
	return config, nil
}

// stderr is the process's original one, which the host has redirected to a file.
var stderr = os.Stderr

// keepOutput sends what the plugin prints to the host's log file. go-plugin's pipes are emptied only while a host is
// connected, so a plugin that prints without one would block. Descriptor 1 is the pipe of the handshake, whose reader
// ends with the host: a write to it would then end the process.
func keepOutput() {
	os.Stdout, os.Stderr = stderr, stderr
	if err := unix.Dup3(2, 1, 0); err != nil {
		Logger().Warn("redirect standard output", "error", err)
	}
}
