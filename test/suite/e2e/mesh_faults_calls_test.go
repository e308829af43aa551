package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/consul"
)

// workloadGoroutines are functions that must not be running after a workload is gone. The sync of its
// services belongs to the host, and may still finish its last round.
var workloadGoroutines = []string{
	"workload.(*run)", "tokens.(*Authority).Derive", "tokens.(*Authority).Revoke",
	"services.(*Registrar).Register(", "services.(*Registrar).Deregister(", "services.(*Registrar).Bootstrap(",
}

// Each request to Consul that a start or a stop makes fails twice. It is retried, and the end state is the
// same as without faults.
func TestMeshRequestsFail(t *testing.T) {
	eachFaultyMode(t, "", func(t *testing.T, m *faultyMesh, spec string) {
		up := []consul.Match{
			{Method: http.MethodPut, Path: "/v1/agent/service/register"},
			m.asks,
			{Method: http.MethodGet, Path: "/v1/acl/token/self"},
			{Method: http.MethodGet, Path: "/v1/agent/service/"},
		}
		down := []consul.Match{{Method: http.MethodPut, Path: "/v1/agent/service/deregister/"}, m.ending()}
		for name, fault := range map[string]consul.Fault{
			"rate limit":        consul.Status(http.StatusTooManyRequests, "Your IP is issuing too many concurrent connections"),
			"overload":          consul.Status(http.StatusServiceUnavailable, "rate limit exceeded"),
			"no leader":         consul.Status(http.StatusInternalServerError, "No cluster leader"),
			"refused":           consul.Refuse(),
			"done and not said": consul.Cut(),
		} {
			t.Run(name, func(t *testing.T) {
				m.in(t)
				fails := func(all []consul.Match) (wait func()) {
					before := map[consul.Match]int{}
					for _, match := range all {
						before[match] = m.proxy.Count(match.Method, match.Path)
						twice := match
						twice.Times = 2
						m.proxy.Add(twice, fault)
					}
					return func() {
						for match, n := range before {
							// After two failures a different request may find that the operation took effect,
							// so the count is not always 3.
							if got := m.proxy.Count(match.Method, match.Path) - n; got < 2 {
								t.Errorf("%s %s was made %d times", match.Method, match.Path, got)
							}
						}
						m.proxy.Clear()
					}
				}
				wait := fails(up)
				m.Run("workload", "start", spec)
				wait()
				m.Run("token", "sweep") // a login whose answer was lost has left a token
				m.isUp("w")
				wait = fails(down)
				m.Run("workload", "stop", spec)
				if name != "done and not said" {
					wait()
				}
				m.proxy.Clear()
				m.nothingAtAll()
			})
		}
	})
}

// A token is not issued in time: the start fails with that reason, and leaves nothing.
func TestMeshDerivationTimesOut(t *testing.T) {
	eachFaultyMode(t, `identity_timeout = "4s"`, func(t *testing.T, m *faultyMesh, spec string) {
		for name, fault := range map[string]consul.Fault{"no answer": hang, "made, and the answer lost": consul.Cut()} {
			t.Run(name, func(t *testing.T) {
				m.in(t)
				before := m.proxy.Count(m.asks.Method, m.asks.Path)
				m.proxy.Add(m.asks, fault)
				cmd := m.Command("workload", "start", spec)
				must(t, cmd.Start())
				m.awaitRequest(m.asks, before+1)
				m.Eventually("the start fails", func() error {
					w, err := m.find("w")
					if err == nil && (w.GetState() != "failed" || !strings.Contains(w.GetMessage(), `identify service "web"`) ||
						!strings.Contains(w.GetMessage(), "more than 4s")) {
						err = fmt.Errorf("it is %s: %s", w.GetState(), w.GetMessage())
					}
					return err
				})
				_ = cmd.Process.Kill() // it would retry for a while
				exitCode(cmd)
				m.proxy.Clear()
				_ = m.Try("workload", "stop", "w") // it may have begun
				m.nothingAtAll()
			})
		}
		m.works(spec)
		m.noGoroutineOf(workloadGoroutines...)
	})
}

// A workload is stopped while Consul delays each request: the start is cancelled at once, and
// nothing is left.
func TestMeshStoppedInTheMiddle(t *testing.T) {
	eachFaultyMode(t, "", func(t *testing.T, m *faultyMesh, spec string) {
		for name, at := range map[string]consul.Match{
			"register":  {Method: http.MethodPut, Path: "/v1/agent/service/register"},
			"identify":  m.asks,
			"read back": {Method: http.MethodGet, Path: "/v1/acl/token/self"},
			"bootstrap": {Method: http.MethodGet, Path: "/v1/agent/service/"},
		} {
			t.Run(name, func(t *testing.T) {
				m.in(t)
				before := m.proxy.Count(at.Method, at.Path)
				m.proxy.Add(at, hang)
				starting := m.background("workload", "start", spec)
				m.awaitRequest(at, before+1)
				stopped := m.background("workload", "stop", spec)
				m.ends(starting, 1, "given up")
				m.proxy.Clear()
				m.ends(stopped, 0)
				m.nothingAtAll()
			})
		}
		m.works(spec)
		m.noGoroutineOf(workloadGoroutines...)
	})
}

// ending matches the request that revokes a token in Consul.
func (m *faultyMesh) ending() consul.Match {
	if m.reach.AuthMethod != "" {
		return consul.Match{Method: http.MethodPost, Path: "/v1/acl/logout"}
	}
	return consul.Match{Method: http.MethodDelete, Path: "/v1/acl/token/"}
}
