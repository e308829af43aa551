// Package frontend is the kind "frontend": a plugin through which others use the host, such as a web page or another
// program's protocol.
package frontend

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/api"
)

// Kind is the kind's protocol with its version.
const Kind = "frontend.v1"

// Frontend is the interface of a plugin of the kind "frontend".
type Frontend interface {
	// Serve accepts connections on the host's listeners until ctx ends, which is when the plugin's next process has
	// taken over or the plugin is stopped. Then it closes its listeners, finishes what it has accepted and returns: at
	// a swap within 5 minutes, at a stop within 10 seconds. It may use the host until it returns. It must not return
	// earlier: the plugin is then unhealthy, with the error that it returns.
	Serve(ctx context.Context, host Host) error
}

// Readier is implemented by a front door that can report whether it could serve. Ready is called before the process
// takes over from another one, which goes on if it fails. It must not accept connections.
type Readier interface {
	Ready(ctx context.Context, host Host) error
}

// Host is what a front door has of its host.
type Host struct {
	// API calls the host's API with the plugin's own rights (the api block of its configuration). While the host is
	// restarted calls wait: give them a deadline.
	API *api.Client
	// State is the plugin's own state.
	State *sdk.State
	// Listen returns a listener on a socket of the plugin's configuration, by the name of its listen block.
	Listen func(name string) (net.Listener, error)
}

const (
	// closeGrace is how long the connections of ServeHTTP have to make a last request after it stops accepting.
	closeGrace = time.Second
	// headerTimeout bounds how long a client may take for a request's header.
	headerTimeout = 10 * time.Second
)

// ServeHTTP serves HTTP on a listener until ctx ends. Then it stops accepting, tells clients to use another connection
// with each answer, waits a second for them to notice, and finishes the requests that still run. One whose header has
// not arrived by then is not answered: it came on a kept connection, and clients repeat it (RFC 9112, section 9.3.1).
func ServeHTTP(ctx context.Context, listener net.Listener, handler http.Handler) error {
	var closing atomic.Bool
	server := &http.Server{
		ReadHeaderTimeout: headerTimeout,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if closing.Load() {
				w.Header().Set("Connection", "close")
			}
			handler.ServeHTTP(w, r)
		}),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return errors.Join(fmt.Errorf("serve %s: %w", listener.Addr(), err), server.Close())
	case <-ctx.Done():
	}
	closing.Store(true)
	_ = listener.Close()
	err := <-served
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	time.Sleep(closeGrace)
	return errors.Join(err, server.Shutdown(context.WithoutCancel(ctx)))
}
