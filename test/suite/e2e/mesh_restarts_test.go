package e2e

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/testhost"
)

// Consul restarts again and again while workloads start and stop. It then answers for a moment from a state that it
// has not read yet: no start is refused for that, and when a stop has returned, Consul has no token of the workload.
func TestMeshConsulRestarts(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{minted, byLogin} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := consul.Start(t, consul.Options{ACL: true, TLS: true})
			lengthenLog(t, c)
			m := joinMesh(t, c, mode, "gc {\n  interval = \"1h\"\n}\n") // no sweep revokes what a stop leaves
			m.open()
			const rounds, workloads = 3, 10
			specs := map[string]string{}
			for n := range workloads {
				id := fmt.Sprintf("w%d", n)
				specs[id] = m.meshWorkload(id, sidecarService(id, ""))
			}
			var lost []string // logins whose answers the end of a Consul took along: nobody can log out
			for round := range rounds {
				started := m.duringRestarts("start", specs, nil)
				tokens := map[string]string{}
				for id := range specs {
					if started[id] {
						tokens[id] = m.service(id).GetTokenAccessor()
					}
				}
				m.duringRestarts("stop", specs, func(id string) {
					if left, err := m.stands(tokens[id]); err != nil || left {
						t.Errorf("round %d: %s was stopped, and Consul has its token: %v, %v", round, id, left, err)
					}
				})
				for accessor, token := range m.siTokens() {
					if mode == byLogin && !slices.Contains(slices.Collect(maps.Values(tokens)), accessor) {
						lost = append(lost, accessor)
					} else if !slices.Contains(lost, accessor) {
						t.Errorf("round %d: Consul has the token %+v", round, token)
					}
				}
			}
			m.nothingInMesh(lost...)
		})
	}
}

// lengthenLog gives Consul a long log, which takes a moment to read: what is written afterwards is unknown until then.
func lengthenLog(t *testing.T, c *consul.Cluster) {
	t.Helper()
	for i := range 200 {
		var ops api.TxnOps
		for k := range 64 {
			ops = append(ops, &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVSet, Key: fmt.Sprintf("%d/%d", i, k), Value: []byte("x")}})
		}
		if ok, _, _, err := c.Client(c.Management).Txn().Txn(ops, nil); err != nil || !ok {
			t.Fatal(err)
		}
	}
}

// duringRestarts runs a command for each workload while Consul restarts twice. after, if not nil, is called as soon as
// one has ended. It returns for which the command succeeded.
func (m *mesh) duringRestarts(command string, specs map[string]string, after func(id string)) map[string]bool {
	m.t.Helper()
	m.consul.Kill(0)
	var all sync.WaitGroup
	var mu sync.Mutex
	succeeded := map[string]bool{}
	for id, spec := range specs {
		all.Go(func() {
			r := m.Try("workload", command, spec)
			if r.Code != 0 {
				m.t.Errorf("%s of %s during restarts of Consul: exit code %d\n%s%s", command, id, r.Code, r.Stdout, r.Stderr)
				return
			}
			if after != nil {
				after(id)
			}
			mu.Lock()
			defer mu.Unlock()
			succeeded[id] = true
		})
	}
	m.consul.Restart(0, false)
	m.consul.Restart(0, false)
	all.Wait()
	return succeeded
}

// stands reports whether Consul's list has a token, as soon as its leader has read its whole state.
func (m *mesh) stands(accessor string) (bool, error) {
	var last error
	for deadline := time.Now().Add(testhost.Wait); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		listed, _, err := m.consul.Client(m.consul.Management).ACL().TokenList(&api.QueryOptions{RequireConsistent: true})
		if last = err; err != nil {
			continue
		}
		for _, token := range listed {
			if token.AccessorID == accessor {
				return true, nil
			}
		}
		return false, nil
	}
	return false, last
}
