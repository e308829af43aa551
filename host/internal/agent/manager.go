package agent

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/pannier/pannier/host/internal/system/servicemanager"
)

const (
	// upgradeSilence bounds an upgrade: nobody answers while the next program is tried.
	upgradeSilence = 5 * time.Minute
	// aliveShare is the part of the service manager's patience in which the agent calls itself.
	aliveShare = 4
)

// keepManagerInformed tells the service manager that the agent is ready, and from then on that it lives, each time that
// the API has answered on its socket. The agent does not call itself before it is ready: until then systemd listens on
// the socket too, and takes a call for a reason to start the agent, which revokes a stop.
func (a *agent) keepManagerInformed(ctx context.Context) {
	if a.manager == nil {
		return
	}
	a.told(a.manager.Tell(servicemanager.Ready))
	a.told(a.manager.AllowSilence(0)) // an upgrade may have set another time
	if a.manager.Watchdog() == 0 {
		return
	}
	every := a.manager.Watchdog() / aliveShare
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if err := answers(ctx, a.cfg.Socket, every); err == nil {
			a.told(a.manager.Tell(servicemanager.Alive))
		} else if ctx.Err() == nil {
			a.log.Warn("the agent does not answer itself, and the service manager will restart it if that goes on", "error", err)
		}
	}
}

// answers calls the API on a socket. Whatever it answers, the agent lives.
func answers(ctx context.Context, socket string, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, "unix", socket)
		},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://pannier/v1/health", http.NoBody)
	if err != nil {
		return err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("call the API on %s: %w", socket, err)
	}
	return resp.Body.Close()
}

// told logs that the service manager could not be told something: nothing else depends on it.
func (a *agent) told(err error) {
	if err != nil {
		a.log.Warn("the service manager does not know how the agent is", "error", err)
	}
}
