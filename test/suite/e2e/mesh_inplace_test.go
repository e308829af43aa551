package e2e

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/xds"
)

// upstreamBlock is an upstream of a proxy block.
func upstreamBlock(name string, port int) string {
	return fmt.Sprintf("          upstreams {\n            destination_name = %q\n            local_bind_port  = %d\n          }\n",
		name, port)
}

func statsdBlock(url string) string {
	return fmt.Sprintf("          config {\n            envoy_statsd_url = %q\n          }\n", url)
}

// The upstreams and the proxy of a program that runs are changed: Envoy's stream gets the upstreams from Consul, and
// only a bootstrap that is different restarts the sidecar. The program is not touched.
func TestMeshChangesInPlace(t *testing.T) {
	t.Parallel()
	m := newMesh(t, minted, "")
	m.open()
	db, moved, cache := freePort(t), freePort(t), freePort(t)
	r := runBeside(t, m, upstreamBlock("db", db))
	pid := m.workload("w").GetPid()
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	check.NoError(t, err)
	for _, want := range []string{"PANNIER_UPSTREAM_ADDR_DB=127.0.0.1:%d", "NOMAD_UPSTREAM_ADDR_db=127.0.0.1:%d"} {
		want = fmt.Sprintf(want, db)
		if !slices.Contains(strings.Split(string(env), "\x00"), want) {
			t.Errorf("the program's environment has no %s: %q", want, env)
		}
	}
	s := m.service("w")
	ads, err := openStream(t, s.GetBootstrapFile())
	check.NoError(t, err)
	before, err := os.Stat(s.GetBootstrapFile())
	check.NoError(t, err)

	m.Run("workload", "update", r.spec(m, upstreamBlock("db", moved)+upstreamBlock("cache", cache)))
	if got := m.service("w").GetUpstreams(); got["db"] != fmt.Sprint("127.0.0.1:", moved) ||
		got["cache"] != fmt.Sprint("127.0.0.1:", cache) {
		t.Errorf("the program finds its upstreams at %v", got)
	}
	for len(listenersOn(ads, moved, cache)) < 2 {
		check.NoError(t, ads.Receive())
	}
	now, err := os.Stat(s.GetBootstrapFile())
	check.NoError(t, err)
	if !os.SameFile(before, now) {
		t.Error("the bootstrap was replaced for upstreams, which come over the stream")
	}

	m.Run("workload", "update", r.spec(m, statsdBlock("udp://192.0.2.1:8125")))
	if got := metricsOf(t, s.GetBootstrapFile()); !slices.Equal(got, []string{"192.0.2.1:8125"}) {
		t.Errorf("the bootstrap sends metrics to %q", got)
	}
	m.Eventually("the sidecar reads the new bootstrap", func() error {
		if n := strings.Count(r.read("starts"), "\n"); n != 2 {
			return fmt.Errorf("it was started %d times", n)
		}
		return nil
	})
	if told := m.Run("events", "-recent", "1000"); strings.Count(told, "bootstrap-replaced") != 1 {
		t.Errorf("the events are\n%s", told)
	}
	if out := m.Try("workload", "update", m.meshWorkload("other", "")); out.Code != 3 {
		t.Errorf("an update of what does not run has the exit code %d: %s", out.Code, out.Stderr)
	}
	if again := m.workload("w").GetPid(); again != pid {
		t.Errorf("the program was %d and is %d", pid, again)
	}
	r.end(t)
	if got := strings.Join(strings.Fields(r.read("order")), " "); got != "sidecar program sidecar" {
		t.Errorf("they ended in the order %q; output:\n%s", got, &r.out)
	}
	m.nothingInMesh()
}

// The proxy-defaults in Consul change, while the agent runs, when it is killed, and while it is down: the bootstrap is
// made again and the sidecar restarted, but not where they change nothing of it.
func TestMeshProxyDefaultsInPlace(t *testing.T) {
	t.Parallel()
	m := newMesh(t, minted, "")
	m.Agent = testbin.BuildTags(t, pannierAgent, "failpoint")
	m.Env = append(m.Env, "PANNIER_FAILPOINT="+m.Path("crash"))
	m.open()
	r := runBeside(t, m, "")
	file := m.service("w").GetBootstrapFile()
	defaults := func(config map[string]any) {
		t.Helper()
		_, _, err := m.consul.Client(m.consul.Management).ConfigEntries().Set(&api.ProxyConfigEntry{
			Kind: api.ProxyDefaults, Name: api.ProxyConfigGlobal, Config: config,
		}, nil)
		check.NoError(t, err)
	}
	replaced := func(url string, starts int) {
		t.Helper()
		m.Eventually("the sidecar has read the new bootstrap", func() error {
			if got := metricsOf(t, file); !slices.Equal(got, []string{url}) {
				return fmt.Errorf("the bootstrap sends metrics to %q", got)
			}
			if n := strings.Count(r.read("starts"), "\n"); n != starts {
				return fmt.Errorf("it was started %d times", n)
			}
			return nil
		})
	}
	defaults(map[string]any{"envoy_statsd_url": "udp://192.0.2.1:1"})
	replaced("192.0.2.1:1", 2)
	defaults(map[string]any{"envoy_statsd_url": "udp://192.0.2.1:1", "protocol": "http"})
	m.Kill()
	defaults(map[string]any{"envoy_statsd_url": "udp://192.0.2.1:2", "protocol": "http"})
	m.Start()
	replaced("192.0.2.1:2", 3)
	m.Write("crash", "service:reconfigured\n")
	defaults(map[string]any{"envoy_statsd_url": "udp://192.0.2.1:3"})
	m.AwaitEnd()
	m.Start()
	replaced("192.0.2.1:3", 4)
	r.end(t)
	m.nothingInMesh()
}

// listenersOn returns the listeners of a stream that have one of the ports.
func listenersOn(s *xds.Stream, ports ...int) (names []string) {
	for name, l := range s.Listeners {
		if slices.Contains(ports, int(l.GetAddress().GetSocketAddress().GetPortValue())) {
			names = append(names, name)
		}
	}
	return names
}

// The agent is killed at each instant of a change. What is left is the old or the new bootstrap, and the next agent
// completes the change.
func TestHostIsKilledInTheMiddleOfAChange(t *testing.T) {
	t.Parallel()
	agent := testbin.BuildTags(t, pannierAgent, "failpoint")
	for _, point := range []string{
		"service:revised", "register:called", "register:noted", "bootstrap:made", "bootstrap:written",
	} {
		t.Run(strings.ReplaceAll(point, ":", " "), func(t *testing.T) {
			t.Parallel()
			m := newMesh(t, minted, "")
			m.Agent = agent
			m.Env = append(m.Env, "PANNIER_FAILPOINT="+m.Path("crash"))
			m.open()
			spec := func(upstream int, url string) string {
				return m.meshWorkload("w", sidecarService("web", upstreamBlock("db", upstream)+statsdBlock(url)))
			}
			m.Run("workload", "start", spec(freePort(t), "udp://192.0.2.1:1"))
			s := m.service("w")
			m.Write("crash", point+"\n")
			moved := freePort(t)
			start := m.Command("workload", "start", spec(moved, "udp://192.0.2.1:2"))
			check.NoError(t, start.Start())
			m.AwaitEnd()
			left := metricsOf(t, s.GetBootstrapFile())
			if was := []string{"192.0.2.1:1"}; point == "bootstrap:written" == slices.Equal(left, was) {
				t.Errorf("killed, the bootstrap sends metrics to %q", left)
			}
			m.Start()
			_ = start.Wait() // it has repeated the start, or was too late
			m.Eventually("the change is complete", func() error {
				if got := metricsOf(t, s.GetBootstrapFile()); !slices.Equal(got, []string{"192.0.2.1:2"}) {
					return fmt.Errorf("the bootstrap sends metrics to %q", got)
				}
				proxy := m.consul.Services(t)[s.GetProxyId()]
				if proxy == nil || proxy.Proxy.Upstreams[0].LocalBindPort != moved {
					return errors.New("Consul has another upstream")
				}
				return nil
			})
			if again := m.service("w"); again.GetTokenAccessor() != s.GetTokenAccessor() || again.GetMessage() != "" {
				t.Errorf("it was %v and is %v", s, again)
			}
			m.Run("workload", "stop", "w")
			m.nothingInMesh()
		})
	}
}
