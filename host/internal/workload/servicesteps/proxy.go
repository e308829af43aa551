package servicesteps

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/pannier/pannier/host/internal/consul/ports"
	"github.com/pannier/pannier/host/internal/system/envoyadmin"
	"github.com/pannier/pannier/host/internal/workload/step"
)

// ProxyStatus is how a service's proxy does, as far as it is known.
type ProxyStatus struct {
	State    ProxyState
	Since    time.Time
	Restarts int
	LastExit string // how its process ended last, with its last line of output
}

// ProxyState is where a proxy stands.
type ProxyState string

// The states of a proxy. A failing one is not ready, has no connection to Consul, or rejects what Consul sends.
const (
	ProxyStarting ProxyState = "starting"
	ProxyReady    ProxyState = "ready"
	ProxyFailing  ProxyState = "failing"
)

// ProxyStates are all of them.
func ProxyStates() []ProxyState { return []ProxyState{ProxyStarting, ProxyReady, ProxyFailing} }

// ProxyEnded notes that the process of a service's proxy has ended, or could not be started.
func (s *Steps) ProxyEnded(svc *Service, restarts int, how string) {
	how = fmt.Sprintf("%.*s", maxReason, how)
	svc.workload.Update(func() {
		svc.proxy.Restarts, svc.proxy.LastExit, svc.proxyEnded = restarts, how, time.Now()
	})
	s.event(svc, "proxy-ended", how)
}

// proxyView is what is known of a proxy from one look at it to the next.
type proxyView struct {
	ready, admin        *envoyadmin.Client
	readyAt, streamsAt  time.Time // when it was that last
	listeners, clusters updates
	held                []ports.Request // the ports that are held for it beside those of the spec
}

// updates are counters of what Envoy did with what Consul has sent.
type updates struct {
	accepted, rejected int
	failing            bool // the last one was rejected
}

// see takes the counters as they are now. Of two that have both grown, the rejection counts.
func (u *updates) see(stats map[string]int, prefix string) {
	accepted, rejected := stats[prefix+".update_success"], stats[prefix+".update_rejected"]
	if rejected != u.rejected || accepted != u.accepted {
		u.failing = rejected > u.rejected
	}
	u.accepted, u.rejected = accepted, rejected
}

// WatchProxy keeps the state of the proxy of a running workload's service until ctx ends, and reports why it fails.
// Where none is expected it counts from when it was ready first: another kind of proxy has no such endpoint.
func (s *Steps) WatchProxy(ctx context.Context, svc *Service, expected bool) {
	at := func(port int, socket string) *envoyadmin.Client {
		network, address := "tcp", net.JoinHostPort(proxyAddress, strconv.Itoa(port))
		if svc.administered() {
			network, address = "unix", svc.socket(s.SecretsDir.Workload(svc.place()), socket)
		}
		return envoyadmin.New(network, address, s.Limits.Ready)
	}
	if svc.ReadyPort == 0 && !svc.administered() {
		return
	}
	v := proxyView{
		ready: at(svc.ReadyPort, readySocket), admin: at(svc.AdminPort, adminSocket),
		readyAt: time.Now(), streamsAt: time.Now(),
	}
	if expected {
		s.setProxy(svc, ProxyStarting)
	}
	for step.Sleep(ctx, s.Limits.Ready/5) == nil {
		_, err := v.ready.Get(ctx, "/ready")
		if err == nil {
			v.readyAt, expected = time.Now(), true
		}
		left := false // Consul's catalog, for its stop: the proxy has its last configuration, and no connection
		svc.workload.View(func() { left = svc.Registers() && svc.Registered == nil })
		if left {
			v.streamsAt = time.Now()
		}
		trouble := cmp.Or(s.trouble(ctx, &v), s.holdListeners(ctx, svc, &v))
		switch {
		case err == nil:
			err = trouble
		case !expected || time.Since(v.readyAt) < s.Limits.Ready:
			continue
		default:
			err = fmt.Errorf("the proxy has not been ready since %s: %w", v.readyAt.Format(time.TimeOnly),
				cmp.Or(trouble, svc.endAfter(v.readyAt), err))
		}
		if ctx.Err() != nil {
			return
		}
		s.Report(svc, Proxying, err)
		if err != nil {
			s.setProxy(svc, ProxyFailing)
		} else {
			s.setProxy(svc, ProxyReady)
		}
	}
}

func (s *Steps) setProxy(svc *Service, is ProxyState) {
	svc.workload.Update(func() {
		if svc.proxy.State != is {
			svc.proxy.State, svc.proxy.Since = is, time.Now()
		}
	})
}

// endAfter returns how the proxy's process ended after a time; nil: it did not.
func (s *Service) endAfter(at time.Time) (err error) {
	s.workload.View(func() {
		if s.proxyEnded.After(at) {
			err = errors.New(s.proxy.LastExit)
		}
	})
	return err
}

// trouble returns why a proxy that runs is failing, by its admin API.
func (s *Steps) trouble(ctx context.Context, v *proxyView) error {
	stats, err := v.admin.Stats(ctx, `(lds|cds)\.update_(rejected|success)|connected_state`)
	if err != nil {
		return nil //nolint:nilerr // it is no Envoy, or a moment in which one takes over from another
	}
	if streams, has := stats["control_plane.connected_state"]; !has || streams > 0 {
		v.streamsAt = time.Now()
	} else if time.Since(v.streamsAt) > s.Limits.Ready {
		return fmt.Errorf("the proxy has had no connection to Consul (xDS) since %s", v.streamsAt.Format(time.TimeOnly))
	}
	v.clusters.see(stats, "cluster_manager.cds")
	v.listeners.see(stats, "listener_manager.lds")
	switch rejects := "the proxy rejects %s that Consul has sent; its log says why"; {
	case v.clusters.failing:
		return fmt.Errorf(rejects, "clusters")
	case v.listeners.failing:
		return fmt.Errorf(rejects, "listeners")
	}
	return nil
}

// holdListeners makes the ports on which the proxy listens the workload's, whoever has named them: the spec, the
// proxy-defaults, the listeners of an API gateway. It returns an error if another workload has one: Envoys share it.
func (s *Steps) holdListeners(ctx context.Context, svc *Service, v *proxyView) error {
	text, err := v.admin.Get(ctx, "/listeners?format=json")
	var is struct {
		Listeners []struct {
			Name    string `json:"name"`
			Address struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err != nil || json.Unmarshal(text, &is) != nil {
		return nil //nolint:nilerr // as in trouble
	}
	holder := svc.workload.Ref()
	before := v.held
	v.held = nil
	for _, l := range is.Listeners {
		r := ports.Request{Label: l.Name, Static: l.Address.Socket.Port, Address: l.Address.Socket.Address}
		if r.Static == 0 {
			continue // a socket of the file system
		}
		added, taken := s.Ports.HoldListener(holder, r.Address, r.Static)
		if added || slices.Contains(before, r) {
			v.held = append(v.held, r)
		}
		if taken != nil {
			err = cmp.Or(err, fmt.Errorf("its listener %q gets connections of another workload: %w", l.Name, taken))
		}
	}
	s.Ports.ReleaseListeners(holder, slices.DeleteFunc(before, func(r ports.Request) bool {
		return slices.Contains(v.held, r)
	})...)
	return err
}

// maxReason bounds what is told of the end of a process, in characters.
const maxReason = 500
