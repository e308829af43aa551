package servicesteps

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/pannier/pannier/host/internal/workload/step"
)

// WatchProxy reports that the proxy of a running workload's service is not ready, for as long as it is not, until ctx
// ends. Where none is expected it counts from when it was ready first: another kind of proxy has no such endpoint.
func (s *Steps) WatchProxy(ctx context.Context, svc *Service, expected bool) {
	network, address := "tcp", net.JoinHostPort(proxyAddress, strconv.Itoa(svc.ReadyPort))
	if svc.administered() {
		network, address = "unix", svc.socket(s.SecretsDir.Workload(svc.place()), readySocket)
	} else if svc.ReadyPort == 0 {
		return
	}
	client := &http.Client{Timeout: s.Limits.Ready, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
	}}
	last := time.Now()
	for step.Sleep(ctx, s.Limits.Ready/5) == nil {
		resp, err := client.Get("http://envoy/ready") //nolint:noctx // bounded, and it ends nothing
		if err == nil {
			_ = resp.Body.Close() // it has nothing of interest
			if resp.StatusCode == http.StatusOK {
				last, expected = time.Now(), true
				s.Report(svc, Proxying, nil)
				continue
			}
			err = fmt.Errorf("it answers %s", resp.Status)
		}
		if expected && time.Since(last) > s.Limits.Ready && ctx.Err() == nil {
			s.Report(svc, Proxying, fmt.Errorf("the proxy has not been ready since %s: %w", last.Format(time.TimeOnly), err))
		}
	}
}
