package cluster_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
)

// quickVotes makes servers that join become voters quickly.
const quickVotes = `
autopilot {
  server_stabilization_time = "1s"
  last_contact_threshold    = "5s"
}
`

func TestForming(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t, testcluster.Options{Servers: 3, Nodes: 1, Config: quickVotes})
	s1, s2, s3, n1 := c.Host("server-1"), c.Host("server-2"), c.Host("server-3"), c.Host("node-1")

	c.Stage(t, "not before as many servers have met as are expected", func(t *testing.T) {
		for _, h := range []*testhost.Host{s1, s2, n1} {
			h.Begin()
		}
		s1.Eventually("the servers that are there have met", func() error {
			r := s1.Try("server", "members")
			if r.Code != 0 || !strings.Contains(r.Stdout, "server-2") || !strings.Contains(r.Stdout, "node-1") {
				return errors.New(r.Stdout + r.Stderr)
			}
			return nil
		})
		for _, h := range []*testhost.Host{s1, s2} {
			var s *hostv1.StatusResponse
			h.Eventually("it answers", func() (err error) {
				s, err = h.Status()
				return err
			})
			if s.GetReady() || s.GetLeader() {
				t.Errorf("%s is ready (%t) or leads (%t) before the third server is there", h.Name, s.GetReady(), s.GetLeader())
			}
		}
		s3.Begin()
		for _, h := range c.Hosts {
			h.AwaitReady()
			h.AwaitDrivers()
		}
	})

	var id string
	c.Stage(t, "all know the same cluster", func(t *testing.T) {
		awaitVoters(t, n1, "server-1", "server-2", "server-3")
		for _, h := range c.Hosts {
			h.Eventually("it knows all members", func() error {
				leader, rows := c.Leader().Name, table(h.Run("server", "members"))
				for name, role := range map[string]string{
					"server-1": "server", "server-2": "server", "server-3": "server",
					"node-1": "node",
				} {
					row := rows[name]
					if len(row) < 4 || row[1] != role || row[2] != "alive" || (row[3] == "yes") != (name == leader) {
						return fmt.Errorf("%s in %q", name, rows)
					}
				}
				return nil
			})
			if rows := table(h.Run("operator", "raft", "list-peers")); len(rows) != 3 {
				t.Errorf("%s lists the peers %q", h.Name, rows)
			}
		}
		n1.Eventually("all nodes are ready", func() error {
			rows := table(n1.Run("node", "status"))
			if len(rows) != 4 {
				return fmt.Errorf("the nodes are %q", rows)
			}
			for name, row := range rows {
				if row[1] != "ready" || row[2] != "yes" {
					return fmt.Errorf("node %s is %q", name, row)
				}
			}
			return nil
		})
		c.Volume(n1, "kept", "single-node-writer")
		id = clusterOf(t, n1)
	})

	c.Stage(t, "never twice", func(t *testing.T) {
		for _, h := range c.Hosts {
			h.Kill()
		}
		rewrite(t, s2, "bootstrap_expect = 3", "bootstrap_expect = 1")
		// A server that is alone must not bootstrap a new cluster.
		s2.Begin()
		s2.Eventually("it answers", func() error { _, err := s2.Status(); return err })
		if r := s2.Try("volume", "status", "-stale"); r.Code != 0 || !strings.Contains(r.Stderr, "no leader") {
			t.Errorf("a server without a quorum answers a query that may be stale with %q, %q", r.Stdout, r.Stderr)
		}
		for _, h := range []*testhost.Host{s1, s3, n1} {
			h.Begin()
		}
		for _, h := range c.Hosts {
			h.AwaitReady()
		}
		awaitVoters(t, n1, "server-1", "server-2", "server-3")
		if now := clusterOf(t, n1); now != id {
			t.Errorf("the cluster's id changed from %[2]s to %[1]s", now, id)
		}
		n1.Run("volume", "status", "kept")
	})

	c.Stage(t, "a fourth server joins and votes", func(t *testing.T) {
		s4 := c.Add("server-4", true)
		s4.Launch()
		awaitVoters(t, n1, "server-1", "server-2", "server-3", "server-4")
		lead(c, "server-4")
		s4.Run("volume", "status", "kept")
	})
}

// table parses a table printed by a command. Rows are keyed by their first column.
func table(out string) map[string][]string {
	rows := map[string][]string{}
	for n, line := range strings.Split(strings.TrimSpace(out), "\n") {
		if fields := strings.Fields(line); n > 0 && len(fields) > 0 {
			rows[fields[0]] = fields
		}
	}
	return rows
}

// clusterOf returns the cluster's id, read from a copy of the ledger.
func clusterOf(t *testing.T, through *testhost.Host) string {
	t.Helper()
	stream, err := through.Client().Operator.SaveSnapshot(testhost.Soon(t), &hostv1.SaveSnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	for stream.Receive() {
		if s := stream.Msg().GetSnapshot(); s != nil {
			return s.GetCluster()
		}
	}
	t.Fatalf("read the copy of the ledger: %v", stream.Err())
	return ""
}
