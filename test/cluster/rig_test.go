package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// node reads one as the ledger has it.
func node(t *testing.T, through *testhost.Host, name string) (*hostv1.GetNodeResponse, error) {
	t.Helper()
	resp, err := through.Client().Nodes.GetNode(soon(t), connect.NewRequest(&hostv1.GetNodeRequest{Name: name}))
	if err != nil {
		return nil, err
	}
	return resp.Msg, nil
}

// awaitNode waits until a node has a status.
func awaitNode(t *testing.T, through *testhost.Host, name, status string) {
	t.Helper()
	through.Eventually("node "+name+" is "+status, func() error {
		n, err := node(t, through, name)
		if err != nil {
			return err
		}
		if got := n.GetNode().GetStatus(); got != status {
			return fmt.Errorf("it is %s", got)
		}
		return nil
	})
}

// awaitFree waits until no claim of a volume is left.
func awaitFree(t *testing.T, through *testhost.Host, volume string) {
	t.Helper()
	through.Eventually("volume "+volume+" is free", func() error {
		if claims := through.Volume(volume).GetClaims(); len(claims) > 0 {
			return fmt.Errorf("it has the claims %v", claims)
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

// run runs a program in the foreground, with a volume at /srv/ID, and returns it when it has
// begun: it writes a line into the volume, again and again, with its name and the seconds since the
// machine came up.
func run(t *testing.T, c *testcluster.Cluster, on *testhost.Host, id, volume string) *program {
	t.Helper()
	const script = `while read up idle </proc/uptime; do echo "$0 $up" >>"$1"; sleep 0.01; done`
	cmd := on.Command("workload", "run", c.Workload(on, id, volume), "--", "sh", "-c", script, id, "/srv/"+volume+"/writes")
	p := &program{cmd: cmd, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.out, &p.out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = cmd.Wait(); close(p.ended) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-p.ended })
	on.Eventually("workload "+id+" writes", func() error {
		select {
		case <-p.ended:
			t.Fatalf("workload %s ended: %s", id, p.out.String())
		default:
		}
		if len(writes(t, c, on, volume, id)) == 0 {
			return errors.New("it has written nothing")
		}
		return nil
	})
	return p
}

// program is a workload that runs in the foreground.
type program struct {
	cmd   *exec.Cmd
	out   strings.Builder
	ended chan struct{}
}

// data is the folder in which the driver keeps a volume.
func data(c *testcluster.Cluster, through *testhost.Host, volume string) string {
	return filepath.Join(c.Volumes, through.Volume(volume).GetSpec().GetExternalId(), "data")
}

// writes are the lines that a workload has written into a volume, or with an empty id all.
func writes(t *testing.T, c *testcluster.Cluster, through *testhost.Host, volume, id string) (lines []string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(data(c, through, volume), "writes"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if id == "" || strings.HasPrefix(line, id+" ") {
			lines = append(lines, line)
		}
	}
	return lines
}

// rewrite changes a host's configuration for its next start.
func rewrite(t *testing.T, h *testhost.Host, old, new string) {
	t.Helper()
	raw, err := os.ReadFile(h.Path("agent.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(raw), old) {
		t.Fatalf("the configuration of %s has no %q:\n%s", h.Name, old, raw)
	}
	h.Write("agent.hcl", strings.Replace(string(raw), old, new, 1))
}
