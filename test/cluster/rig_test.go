package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	hostv1 "github.com/pannier/pannier/host/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/testcluster"
	"github.com/pannier/pannier/test/testhost"
	"github.com/pannier/pannier/test/testns"
)

func TestMain(m *testing.M) { testns.Main(m, 3) }

// stage is one part of what a cluster goes through. What comes after one that failed
// would tell nothing.
func stage(t *testing.T, c *testcluster.Cluster, name string, run func(t *testing.T)) {
	t.Helper()
	if !t.Run(name, func(t *testing.T) {
		for _, h := range c.Hosts {
			h.Use(t)
		}
		run(t)
	}) {
		t.FailNow()
	}
}

// soon bounds a call that has to be answered.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testhost.Wait)
	t.Cleanup(cancel)
	return ctx
}

// peers are raft's servers, as the one that leads says to a host.
func peers(t *testing.T, through *testhost.Host) ([]*hostv1.RaftPeer, error) {
	t.Helper()
	resp, err := through.Client().Operator.ListPeers(soon(t), connect.NewRequest(&hostv1.ListPeersRequest{}))
	if err != nil {
		return nil, err
	}
	return resp.Msg.GetPeers(), nil
}

// awaitVoters waits until raft's servers are these, all with a vote and healthy.
func awaitVoters(t *testing.T, through *testhost.Host, names ...string) {
	t.Helper()
	through.Eventually("the voters are "+strings.Join(names, ", "), func() error {
		all, err := peers(t, through)
		if err != nil {
			return err
		}
		var voters []string
		for _, p := range all {
			if p.GetVoter() && p.GetHealthy() {
				voters = append(voters, p.GetName())
			}
		}
		if slices.Sort(voters); len(all) != len(names) || !slices.Equal(voters, names) {
			return fmt.Errorf("they are %v", all)
		}
		return nil
	})
}

// holder is who has the one claim of a volume.
func holder(t *testing.T, through *testhost.Host, volume string) *hostv1.Claim {
	t.Helper()
	claims := through.Volume(volume).GetClaims()
	if len(claims) != 1 {
		t.Fatalf("volume %q has the claims %v, want one", volume, claims)
	}
	return claims[0]
}

// start starts a workload with volumes of the cluster.
func start(c *testcluster.Cluster, on *testhost.Host, id string, volumes ...string) {
	on.Run("workload", "start", c.Workload(on, id, volumes...))
}

// awaitStarted starts it as soon as that is possible.
func awaitStarted(c *testcluster.Cluster, on *testhost.Host, id string, volumes ...string) {
	spec := c.Workload(on, id, volumes...)
	on.Eventually("workload "+id+" is started", func() error {
		if r := on.Try("workload", "start", spec); r.Code != 0 {
			return errors.New(r.Stdout + r.Stderr)
		}
		return nil
	})
}

// rewrite changes a host's configuration for its next start.
func rewrite(t *testing.T, h *testhost.Host, old, with string) {
	t.Helper()
	raw, err := os.ReadFile(h.Path("agent.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(raw), old) {
		t.Fatalf("the configuration of %s has no %q:\n%s", h.Name, old, raw)
	}
	h.Write("agent.hcl", strings.Replace(string(raw), old, with, 1))
}

// volumeMounts are the volumes that are mounted on a host.
func volumeMounts(h *testhost.Host) []string {
	return slices.DeleteFunc(h.Mounts(), func(m string) bool { return !strings.Contains(m, "/csi/") })
}
