package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/pannier/pannier/host/internal/consul/credentials"
	"github.com/pannier/pannier/host/internal/system/handover"
	"github.com/pannier/pannier/sdk/api"
)

// ExitConfig is the exit code of an agent of the service manager whose configuration cannot work (EX_CONFIG of
// sysexits.h): it is not started again before somebody calls it.
const ExitConfig = 78

const (
	// refuseIdle is how long no call may come before Refuse returns, and refuseWithin how long the answers may take.
	refuseIdle, refuseWithin = 100 * time.Millisecond, 2 * time.Second
	// refuseReason bounds the reason, in bytes: a client reads a header of that size.
	refuseReason = 2000
)

// Refuse answers the calls that wait at the service manager's sockets with why the agent does not come up. A call that
// waits starts the service again at once, for ever. refused is false if this process has no such sockets.
func Refuse(ctx context.Context, why error) (refused bool, err error) {
	sockets := handover.NewSockets(nil)
	if err := sockets.Activate(); err != nil {
		return false, err
	}
	listeners, err := sockets.Activated()
	reason := strings.ReplaceAll(strings.TrimSpace(why.Error()), "\n", "; ")
	reason = "pannier.service does not come up: " + reason[:min(len(reason), refuseReason)]
	server := &http.Server{ReadHeaderTimeout: refuseWithin, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(api.NotUpHeader, reason)
			w.Header().Set("Connection", "close")
			http.Error(w, reason, http.StatusServiceUnavailable)
		})}
	var serving sync.WaitGroup
	for _, l := range listeners {
		serving.Go(func() { _ = server.Serve(waiting{l.(*net.UnixListener)}) }) // ends with the calls that wait
	}
	serving.Wait()
	ctx, cancel := context.WithTimeout(ctx, refuseWithin)
	defer cancel()
	if ended := server.Shutdown(ctx); ended != nil {
		err = errors.Join(err, fmt.Errorf("refuse the calls that wait: %w", ended))
	}
	return len(listeners) > 0, err
}

// waiting has the connections that wait at a socket. A unit that loads a credential fails.
type waiting struct{ *net.UnixListener }

func (w waiting) Accept() (net.Conn, error) {
	for {
		if err := w.SetDeadline(time.Now().Add(refuseIdle)); err != nil {
			return nil, err
		}
		conn, err := w.UnixListener.Accept()
		if err != nil {
			return nil, net.ErrClosed // nobody waits any more
		}
		if !credentials.Asks(conn) {
			return conn, nil
		}
		_ = conn.SetDeadline(time.Now().Add(refuseWithin)) // fails only when it is closed
		_ = errors.Join(credentials.Refuse(conn), conn.Close())
	}
}
