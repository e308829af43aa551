package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/lib/testprometheus"
)

// Each alert about a cluster fires in a real Prometheus when its cause is there.
func TestClusterAlerts(t *testing.T) {
	t.Parallel()
	c := testcluster.Start(t, testcluster.Options{Servers: 3, Nodes: 2, ServerConfig: short})
	var targets []string
	for _, h := range c.Hosts {
		targets = append(targets, fmt.Sprintf("%s:7420", h.Net.Addr))
	}
	n1, n2 := c.Host("node-1"), c.Host("node-2")
	p := testprometheus.Start(t, n1.Net.Do, "https", targets...)
	fires := func(names ...string) { t.Helper(); p.Await(n1.Eventually, names...) }
	p.Quiet(n1.Eventually, slices.DeleteFunc(testprometheus.Names(t), func(name string) bool {
		return name == "PannierDataDirectoryFull" // the machine's own may be
	})...)

	n2.Kill()
	for _, file := range []string{"dc1-node-node-2.pem", "dc1-node-node-2-key.pem"} {
		check.NoError(t, os.Remove(filepath.Join(c.Dir, file)))
	}
	c.Cert("node", "node-2", "-days", "7")
	fires("PannierAgentDown", "PannierNodeLost")
	n2.Begin()
	n2.AwaitReady()
	p.Quiet(n1.Eventually, "PannierAgentDown", "PannierNodeLost")

	fires("PannierCertificateExpires")
	n1.Eventually("the alert PannierElections fires", func() error {
		if firing, err := p.Firing(); err != nil || firing["PannierElections"] != "" {
			return err
		}
		transfer(c) // it may be seen together with the next one
		return errors.New("not yet")
	})

	leader := c.Leader()
	followers := slices.DeleteFunc(c.Servers(), func(h *testhost.Host) bool { return h == leader })
	followers[0].Kill()
	fires("PannierNoSlack")
	followers[1].Kill()
	fires("PannierNoLeader", "PannierNoLease")
	for _, h := range followers {
		h.Begin()
	}
	for _, h := range c.Hosts {
		h.AwaitReady()
	}
	p.Quiet(n1.Eventually, "PannierAgentDown", "PannierNodeLost", "PannierNoSlack", "PannierNoLeader", "PannierNoLease")
}

// transfer makes another server the leader.
func transfer(c *testcluster.Cluster) {
	before := c.Leader()
	before.Eventually("another server leads", func() error {
		if now := c.Leader(); now != before {
			return nil
		}
		if r := before.Try("operator", "raft", "transfer-leadership"); r.Code != 0 {
			return errors.New(r.Stderr)
		}
		return errors.New("not yet")
	})
}
