package e2e

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/testhost"
)

// A sweep, first as a dry run, revokes exactly the tokens whose workload is gone. It does not touch tokens of
// a running workload, of another cluster, or of other programs.
func TestMeshSweep(t *testing.T) {
	t.Parallel()
	m := newFaultyMesh(t, consul.Options{}, minted, "", testhost.LocalDriver(t))
	m.open()
	volume(m.Host, drivers[0], "data", "single-node-writer", "")
	spec := m.faultyWorkload("w")
	m.Run("workload", "start", spec)
	own := m.service("w").GetTokenAccessor()
	ours := m.siTokens()[own].Description
	dead := m.tokenOf(strings.Replace(ours, "[default/w]", "[default/dead]", 1))
	copied := m.tokenOf(ours)
	cluster, _, _ := strings.Cut(strings.TrimPrefix(ours, "_pannier_si ["), "]")
	foreign := m.tokenOf(strings.Replace(ours, cluster, "00000000-0000-4000-8000-000000000000", 1))
	others := m.tokenOf("of somebody's own")

	there := func(when string, want ...string) {
		t.Helper()
		found := map[string]bool{}
		for _, token := range m.consul.Tokens(t) {
			found[token.AccessorID] = true
		}
		kept := map[string]bool{}
		for _, accessor := range append(want, own, foreign, others) {
			kept[accessor] = true
		}
		for name, accessor := range map[string]string{
			"own": own, "dead": dead, "copied": copied, "foreign": foreign, "somebody's": others,
		} {
			if found[accessor] != kept[accessor] {
				t.Errorf("%s, the token %s exists: %v", when, name, found[accessor])
			}
		}
	}
	said := m.Run("token", "sweep", "-dry-run")
	there("after a dry run", dead, copied)
	for accessor, listed := range map[string]bool{dead: true, copied: true, own: false, foreign: false, others: false} {
		if strings.Contains(said, accessor) != listed {
			t.Errorf("%s is listed: %v, in\n%s", accessor, !listed, said)
		}
	}
	m.Run("token", "sweep")
	there("after a sweep")
	snapshot, _, err := m.consul.Client(m.consul.Management).Snapshot().Save(nil)
	must(t, err)
	m.isStillUp(spec, own)
	// A restored snapshot of Consul brings the token of a workload back that has ended.
	must(t, m.consul.Client(m.consul.Management).Snapshot().Restore(nil, snapshot))
	must(t, snapshot.Close())
	m.Eventually("the token is back, and swept", func() error {
		if m.siTokens()[own] == nil {
			return errors.New("it is not back")
		}
		if said := m.Run("token", "sweep"); !strings.Contains(said, own) || m.siTokens()[own] != nil {
			return fmt.Errorf("the sweep says %s", said)
		}
		return nil
	})

	// The host loses its journal. The token of the forgotten workload is revoked by the host itself or by a
	// sweep.
	m.Run("workload", "start", spec)
	m.Kill()
	must(t, os.RemoveAll(m.Path("data/journal")))
	m.Start()
	m.Run("token", "sweep")
	for _, accessor := range []string{foreign, others} {
		if _, err := m.consul.Client(m.consul.Management).ACL().TokenDelete(accessor, nil); err != nil {
			t.Fatal(err)
		}
	}
	m.nothingAtAll()
}

// isStillUp checks that a workload has kept its token, and stops it.
func (m *faultyMesh) isStillUp(spec, accessor string) {
	m.t.Helper()
	m.rightFiles("w")
	if got := m.service("w").GetTokenAccessor(); got != accessor {
		m.t.Errorf("its token changed from %s to %s", accessor, got)
	}
	m.Run("workload", "stop", spec)
}

// tokenOf creates a token with a description that belongs to no workload.
func (m *faultyMesh) tokenOf(description string) (accessor string) {
	m.t.Helper()
	token, _, err := m.consul.Client(m.consul.Management).ACL().TokenCreate(&api.ACLToken{
		Description: description, ServiceIdentities: []*api.ACLServiceIdentity{{ServiceName: "web"}}, Local: true,
	}, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	return token.AccessorID
}
