package service

import (
	"slices"
	"strings"
	"time"
)

const (
	// minInterval is the shortest interval that Consul accepts (agent/checks).
	minInterval = time.Second
	minTimeout  = time.Millisecond
)

func (v *validator) check(at field, s *Service, c *Check) {
	switch c.Type {
	case CheckHTTP, CheckTCP, CheckGRPC, CheckProcess:
	case "":
		v.fail(at.in("type"), "is required")
		return
	default:
		v.fail(at.in("type"), "%q is not one of %s, %s, %s, %s", c.Type, CheckHTTP, CheckTCP, CheckGRPC, CheckProcess)
		return
	}
	if c.Interval == "" {
		v.fail(at.in("interval"), "is required")
	} else {
		v.duration(at.in("interval"), c.Interval, minInterval)
	}
	if c.Timeout != "" {
		v.duration(at.in("timeout"), c.Timeout, minTimeout)
	}
	v.oneOf(at.in("initial_status"), c.InitialStatus, "passing", "warning", "critical")
	v.port(at.in("port"), c.Port)
	v.address(at.in("address"), c.Address)
	v.counts(at, c)
	v.kindOfCheck(at, c)
	if c.Type != CheckProcess && c.Port == "" && s.Port == "" {
		v.fail(at.in("port"), "is required: neither the check nor the service has one")
	}
	if c.Type == CheckHTTP {
		v.absolute(at.in("path"), c.Path)
		v.oneOf(at.in("protocol"), c.Protocol, "http", "https")
	}
	if c.Expose && (s.Connect == nil || s.Connect.SidecarService == nil) {
		v.fail(at.in("expose"), "the service has no sidecar to go through")
	}
}

func (v *validator) counts(at field, c *Check) {
	const highest = 1<<31 - 1
	v.between(at.in("success_before_passing"), c.SuccessBeforePassing, 0, highest)
	v.between(at.in("failures_before_warning"), c.FailuresBeforeWarning, 0, highest)
	v.between(at.in("failures_before_critical"), c.FailuresBeforeCritical, 0, highest)
	if c.FailuresBeforeWarning > c.FailuresBeforeCritical {
		v.fail(at.in("failures_before_warning"), "%d is more than failures_before_critical, which is %d",
			c.FailuresBeforeWarning, c.FailuresBeforeCritical)
	}
}

// kindOfCheck reports fields that a check of this type does not use.
func (v *validator) kindOfCheck(at field, c *Check) {
	http, grpc, asked := []string{CheckHTTP}, []string{CheckGRPC}, []string{CheckHTTP, CheckTCP, CheckGRPC}
	secure := []string{CheckHTTP, CheckGRPC}
	for _, f := range []struct {
		name  string
		given bool
		types []string
	}{
		{"path", c.Path != "", http},
		{"protocol", c.Protocol != "", http},
		{"method", c.Method != "", http},
		{"body", c.Body != "", http},
		{"header", len(c.Header) > 0, http},
		{"grpc_service", c.GRPCService != "", grpc},
		{"grpc_use_tls", c.GRPCUseTLS, grpc},
		{"tls_skip_verify", c.TLSSkipVerify, secure},
		{"tls_server_name", c.TLSServerName != "", secure},
		{"expose", c.Expose, secure},
		{"port", c.Port != "", asked},
		{"address", c.Address != "", asked},
		{"timeout", c.Timeout != "", asked},
		{"success_before_passing", c.SuccessBeforePassing != 0, asked},
		{"failures_before_warning", c.FailuresBeforeWarning != 0, asked},
		{"failures_before_critical", c.FailuresBeforeCritical != 0, asked},
	} {
		if f.given && !slices.Contains(f.types, c.Type) {
			v.fail(at.in(f.name), "a check of type %s has none; it is for %s", c.Type, strings.Join(f.types, ", "))
		}
	}
}
