package services

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"

	"github.com/hashicorp/consul/api"

	"github.com/pannier/pannier/sdk/service"
)

// checkPrefix returns the prefix of the ids of the service's checks that are ours. Other checks, such as the check of
// Consul's maintenance mode, are left alone.
func checkPrefix(id string) string { return "service:" + id }

// processCheck returns the id of the check that Heartbeat updates.
func processCheck(id string) string { return checkPrefix(id) + ":process" }

// listeningCheck is Consul's name for its check of whether a sidecar listens.
const listeningCheck = "Connect Sidecar Listening"

// quicken makes Consul check every second whether a sidecar listens. Consul itself does so every 10 s, for which a
// proxy that has just started would get no requests.
func (a *agent) quicken(ctx context.Context, sidecar *api.AgentService) error {
	host := cmp.Or(sidecar.Address, sidecar.Proxy.LocalServiceAddress)
	return a.error(a.Agent().CheckRegisterOpts(&api.AgentCheckRegistration{
		ID: checkPrefix(sidecar.ID) + ":1", Name: listeningCheck, ServiceID: sidecar.ID,
		AgentServiceCheck: api.AgentServiceCheck{
			TCP: net.JoinHostPort(host, strconv.Itoa(sidecar.Port)), Interval: "1s",
		},
	}, query(ctx)), "check service %q more often", sidecar.ID)
}

func buildChecks(id string, s *service.Service, port int) (api.AgentServiceChecks, error) {
	var out api.AgentServiceChecks
	var process bool
	all := s.Checks
	if len(all) == 0 {
		all = gatewayCheck(s)
	}
	for n, c := range all {
		check, err := buildCheck(&c, s, port)
		if err != nil {
			return nil, fmt.Errorf("check %d: %w", n+1, err)
		}
		check.CheckID = fmt.Sprintf("%s:%d", checkPrefix(id), n+1)
		if c.Type == service.CheckProcess {
			if process {
				return nil, errors.New("there are several checks of type process: only one is allowed")
			}
			process = true
			check.CheckID = processCheck(id)
		}
		out = append(out, check)
	}
	return out, nil
}

// gatewayCheck returns the check that a gateway has if the spec has none, as often as that of a sidecar: whether it
// listens on its own port or, if it has none, on that of its first listener. A port is not known of every gateway.
func gatewayCheck(s *service.Service) []service.Check {
	if s.Connect == nil || s.Connect.Gateway == nil {
		return nil
	}
	g := s.Connect.Gateway
	port := s.Port
	if g.Ingress != nil && len(g.Ingress.Listeners) > 0 {
		port = strconv.Itoa(int(g.Ingress.Listeners[0].Port))
	}
	if port == "" || g.Proxy != nil && g.Proxy.EnvoyGatewayNoDefaultBind {
		return nil
	}
	return []service.Check{{Type: service.CheckTCP, Name: "Gateway Listening", Port: port, Interval: "1s"}}
}

func buildCheck(c *service.Check, s *service.Service, port int) (*api.AgentServiceCheck, error) {
	out := &api.AgentServiceCheck{
		Name:                   c.Name,
		Status:                 c.InitialStatus,
		SuccessBeforePassing:   int(c.SuccessBeforePassing),
		FailuresBeforeWarning:  int(c.FailuresBeforeWarning),
		FailuresBeforeCritical: int(c.FailuresBeforeCritical),
	}
	if out.Name == "" {
		out.Name = fmt.Sprintf("service: %q check", s.Name)
	}
	if c.Type == service.CheckProcess {
		out.TTL = c.Interval
		out.Notes = noted(c, "passes while the workload's process lives, and fails "+c.Interval+" after the host has last said so")
		return out, nil
	}
	if c.Port != "" {
		var err error
		if port, err = number("port", c.Port); err != nil {
			return nil, err
		}
	}
	if port == 0 {
		return nil, fmt.Errorf("a check of type %q needs a port, its own or its service's", c.Type)
	}
	host := c.Address
	if host == "" {
		host = s.Address
	}
	if host == "" {
		host = "127.0.0.1"
	}
	out.Interval, out.Timeout = c.Interval, c.Timeout
	out.TLSSkipVerify, out.TLSServerName = c.TLSSkipVerify, c.TLSServerName
	what, err := target(out, c, net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, err
	}
	what += " every " + c.Interval
	if c.Timeout != "" {
		what += ", within " + c.Timeout
	}
	out.Notes = noted(c, what)
	return out, nil
}

// noted puts the notes of the spec before those that tell registrations apart.
func noted(c *service.Check, what string) string {
	if c.Notes == "" {
		return what
	}
	return c.Notes + " (" + what + ")"
}

// target sets what a check requests, and returns a description of it.
func target(out *api.AgentServiceCheck, c *service.Check, address string) (string, error) {
	switch c.Type {
	case service.CheckHTTP:
		u, err := checkURL(c, address)
		if err != nil {
			return "", err
		}
		out.HTTP, out.Method, out.Body = u, c.Method, c.Body
		for name, values := range c.Header {
			if out.Header == nil {
				out.Header = map[string][]string{}
			}
			out.Header[name] = values.Values
		}
		method := c.Method
		if method == "" {
			method = http.MethodGet
		}
		return method + " " + u, nil
	case service.CheckTCP:
		out.TCP = address
		return "tcp " + address, nil
	case service.CheckGRPC:
		out.GRPC, out.GRPCUseTLS = address, c.GRPCUseTLS
		if c.GRPCService != "" {
			out.GRPC += "/" + c.GRPCService
		}
		return "grpc " + out.GRPC, nil
	}
	return "", fmt.Errorf("type %q is none of http, tcp, grpc and process", c.Type)
}

// checkURL appends the path, which may have a query, to the address.
func checkURL(c *service.Check, address string) (string, error) {
	scheme := c.Protocol
	if scheme == "" {
		scheme = "http"
	}
	path, err := url.Parse(c.Path)
	if err != nil {
		return "", fmt.Errorf("path: %w", err)
	}
	if path.IsAbs() || path.Host != "" {
		return "", fmt.Errorf("path %q has a host: use address and port", c.Path)
	}
	return (&url.URL{Scheme: scheme, Host: address}).ResolveReference(path).String(), nil
}

// number parses a port; empty is 0.
func number(what, text string) (int, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%s %q is not a port number", what, text)
	}
	return int(n), nil
}
