package cluster_test

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"testing"

	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
)

// TestFirstServer makes a standalone host the first server of a cluster, with its volumes and
// running workloads.
func TestFirstServer(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t, testcluster.Options{Servers: 1, Config: quickVotes})
	s1 := c.Host("server-1")
	whole, err := os.ReadFile(s1.Path("agent.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	alone := regexp.MustCompile(`(?s)retry_join.*?key_file[^}]*}|autopilot \{.*?\}`).ReplaceAllString(string(whole), "")
	s1.Write("agent.hcl", alone)
	var id, token string

	c.Stage(t, "a host of its own", func(t *testing.T) {
		s1.Start()
		if r := s1.Try("server", "join", "10.77.0.9"); r.Code == 0 {
			t.Errorf("a host without certificates joined others: %s", r.Stdout)
		}
		c.Volume(s1, "old", "single-node-writer")
		start(c, s1, "old", "old")
		awaitVoters(t, s1, "server-1")
		s1.Run("operator", "autopilot", "health")
		id, token = clusterOf(t, s1), fmt.Sprint(s1.Holder("old").GetIndex())
	})

	c.Stage(t, "becomes the first server", func(t *testing.T) {
		s1.Stop()
		// With retry_join it would be refused (TestLedgerOfASingleHost).
		s1.Write("agent.hcl", regexp.MustCompile(`(?m)^\s*retry_join.*$`).ReplaceAllString(string(whole), ""))
		s1.Start()
		if now := clusterOf(t, s1); now != id {
			t.Errorf("the cluster's id changed from %[2]s to %[1]s", now, id)
		}
		if now := s1.Holder("old"); fmt.Sprint(now.GetIndex()) != token || now.GetNode() != "server-1" {
			t.Errorf("the claim is now %v", now)
		}
		if left := s1.VolumeMounts(); len(left) == 0 {
			t.Error("the volume is no longer mounted")
		}
	})

	c.Stage(t, "others join, and may lead", func(t *testing.T) {
		s2, s3 := c.Add("server-2", true), c.Add("server-3", true)
		for _, h := range []*testhost.Host{s2, s3} {
			rewrite(t, h, "bootstrap_expect = 1", "bootstrap_expect = 0")
		}
		launch(s2, s3)
		awaitVoters(t, s2, "server-1", "server-2", "server-3")
		s2.Run("operator", "raft", "transfer-leadership", "server-3")
		s2.Run("volume", "status", "old")
		s2.Refused(4, []string{"old", "server-1"}, "workload", "start", c.Workload(s2, "new", "old"))
		s1.Run("workload", "stop", "old")
		c.AwaitStarted(s2, "new", "old")
		s1.Kill()
		s2.Eventually("another server leads", func() error {
			if c.Leader() == s1 {
				return errors.New("it is the first")
			}
			return nil
		})
		c.Volume(s2, "new", "single-node-writer")
	})
}

// TestClustersOfOne: three servers that were started alone, and meet, are three clusters. Every check of a cluster says
// so, on each of them.
func TestClustersOfOne(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t, testcluster.Options{Servers: 1})
	c.Add("server-2", true)
	c.Add("server-3", true)
	for _, h := range c.Hosts {
		config, err := os.ReadFile(h.Path("agent.hcl"))
		if err != nil {
			t.Fatal(err)
		}
		h.Write("agent.hcl", regexp.MustCompile(`(?m)^\s*retry_join.*$`).ReplaceAllString(string(config), ""))
	}
	launch(c.Hosts...)
	checks := [][]string{{"status"}, {"server", "members"}, {"operator", "autopilot", "health"}, {"doctor"}}
	for _, check := range checks {
		c.Hosts[0].Run(check...)
	}
	for _, h := range c.Hosts[1:] {
		c.Hosts[0].Run("server", "join", h.Net.Addr.String())
	}
	for _, h := range c.Hosts {
		h.Eventually("it knows the others", func() error {
			if rows := table(h.Try("server", "members").Stdout); len(rows) != 3 {
				return fmt.Errorf("the members are %q", rows)
			}
			return nil
		})
		for _, check := range checks {
			h.Refused(1, []string{"the pool holds 3 clusters", "server-1", "server-2", "server-3"}, check...)
		}
	}
}
