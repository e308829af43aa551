package crash

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/pannier/pannier/test/lib/consul"
)

// meshed kills everything while a service gets its registration, token and bootstrap, and while
// they are removed.
func meshed(t *testing.T, m *matrix) {
	p := &rigs{kind: inMesh, t: t}
	t.Run("start", func(t *testing.T) { p.each(t, m, starts(p.kind), (*rig).start) })
	t.Run("stop", func(t *testing.T) { p.each(t, m, stops(p.kind), (*rig).stop) })
	t.Run("around", func(t *testing.T) { p.around(t, m) })
	t.Run("replace", func(t *testing.T) { p.each(t, m, replacements(), (*rig).replace) })
	t.Run("sweep", func(t *testing.T) { p.each(t, m, cases(of("sweep", "revoked"), nil), (*rig).sweep) })
	again := &rigs{kind: inMesh, t: t, reboots: true}
	t.Run("reboot", func(t *testing.T) { again.machines(t, m) })
}

// The requests to Consul of a start, and those of a stop.
var (
	meshUp = []request{
		{"intend", "consul-services", consul.Match{Method: http.MethodPut, Path: "/v1/config"}},
		{"register", "consul-services", consul.Match{Method: http.MethodPut, Path: "/v1/agent/service/register"}},
		{"mint", "sids", consul.Match{Method: http.MethodPut, Path: "/v1/acl/token"}},
		{"read back", "sids", consul.Match{Method: http.MethodGet, Path: "/v1/acl/token/self"}},
		{"look for the sidecar", "envoy-bootstrap", consul.Match{Method: http.MethodGet, Path: "/v1/agent/service/"}},
	}
	meshDown = []request{
		{"close", "consul-services", consul.Match{Method: http.MethodDelete, Path: "/v1/config/service-intentions/"}},
		{"deregister", "consul-services", consul.Match{Method: http.MethodPut, Path: "/v1/agent/service/deregister/"}},
		{"revoke", "sids", consul.Match{Method: http.MethodDelete, Path: "/v1/acl/token/"}},
	}
)

// meshStarts are the instants of a start that concern services. The token's derivation has two: in
// the authority and in the workload.
func meshStarts() []crash {
	do := []string{"intended", "called", "noted"}
	points := slices.Concat(of("claim", do...), of("register", do...), of("identify", do...), of("bootstrap", do...),
		of("token", "derived", "derived#2", "adopted", "written"), of("bootstrap", "made"), of("workload", "running"))
	return append(cases(points, nil), requests(meshUp)...)
}

func meshStops() []crash {
	undo := []string{"undo", "undone", "forgotten"}
	points := slices.Concat(of("workload", "stopping", "ended"), of("bootstrap", undo...), of("identify", undo...),
		of("register", undo...),
		of("token", "revoked", "revoked#2"), of("claim", undo...), of("workload", "gone"))
	return append(cases(points, nil), requests(meshDown)...)
}

// replacements are the instants at which a service gets a new token because Consul has lost the old
// one.
func replacements() []crash {
	return cases(of("token", "chosen", "intended", "derived", "derived#2", "adopted", "written", "revoked"), nil)
}

// requests are the cases of each request: the plugin, Consul and the host die alone or together.
func requests(all []request) (out []crash) {
	for n := range all {
		of := &all[n]
		for _, who := range [][]string{
			{"host"}, {of.plugin}, {"consul"}, {"host", of.plugin}, {"host", "consul"}, {of.plugin, "consul"}, {
				"host",
				of.plugin, "consul",
			}, {},
		} {
			out = append(out, crash{who: who, request: of}, crash{who: who, request: of, worked: true})
		}
	}
	return out
}

// replace kills the host while it gives a service of a running workload a new token, since Consul
// has lost the old one.
func (r *rig) replace(t *testing.T, c crash) {
	r.h.Run("workload", "start", r.h.Path(workloadSpec))
	r.loseToken(t)
	r.h.Kill()
	asked := consul.Match{Method: http.MethodGet, Path: "/v1/acl/token/self"}
	before := r.mesh.proxy.Count(asked.Method, asked.Path)
	r.mesh.proxy.Add(asked, consul.Stall()) // the host checks its tokens when it is up
	r.h.Launch()
	r.h.Eventually("the host asks for its token", func() error {
		if r.mesh.proxy.Count(asked.Method, asked.Path) == before {
			return errors.New("it has not")
		}
		return nil
	})
	crashed := r.arm(t, c)
	r.mesh.proxy.Clear()
	await(t, c.described(), crashed)
	r.restart(c.who)
	r.h.Eventually("the service has another token", func() error {
		if d := r.look().differs(r.running); d != "" {
			return fmt.Errorf("the state differs from that without a crash:\n%s", d)
		}
		return nil
	})
	r.h.Run("workload", "stop", "w")
	r.equals(t, "after the stop", r.stopped)
}

// loseToken deletes the service's token in Consul.
func (r *rig) loseToken(t *testing.T) {
	t.Helper()
	secret, err := os.ReadFile(r.seen(r.h.SecretsDir() + "/default/w/web/si_token"))
	if err != nil {
		t.Fatal(err)
	}
	self, _, err := r.mesh.consul.Client(string(secret)).ACL().TokenReadSelf(nil)
	if err == nil {
		_, err = r.mesh.consul.Client(r.mesh.consul.Management).ACL().TokenDelete(self.AccessorID, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// sweep kills the host after it has revoked the token of a workload that it does not know.
func (r *rig) sweep(t *testing.T, c crash) {
	r.h.Run("workload", "start", r.h.Path(workloadSpec))
	acl := r.mesh.consul.Client(r.mesh.consul.Management).ACL()
	for _, token := range r.mesh.consul.Tokens(t) {
		if len(token.ServiceIdentities) == 1 { // a second token like it
			_, _, err := acl.TokenCreate(&api.ACLToken{
				Description:       token.Description,
				ServiceIdentities: token.ServiceIdentities, Local: true,
			}, nil)
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	crashed := r.arm(t, c)
	cmd := r.run(t, "token", "sweep")
	struck(t, c.described(), crashed, cmd)
	r.restart(c.who)
	<-cmd.done
	r.equals(t, "after another sweep", r.running)
	r.h.Run("workload", "stop", "w")
	r.equals(t, "after the stop", r.stopped)
}
