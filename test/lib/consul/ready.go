package consul

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/consul/api"
)

// ready waits until every started server answers with what was written last, the cluster has a leader, all its servers
// vote, and its mesh CA exists.
func (c *Cluster) ready(timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for {
		err := c.check()
		if err == nil {
			return nil
		}
		for _, s := range c.Servers {
			if s.ended != nil && !s.running() {
				return fmt.Errorf("%s has ended:\n%s", s.Name, s.logTail())
			}
		}
		if time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (c *Cluster) check() error {
	for _, s := range c.Servers {
		if s.ended == nil {
			continue // killed by the test
		}
		if err := c.checkServer(s); err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	return nil
}

func (c *Cluster) checkServer(s *Server) error {
	client, err := c.client(s, c.Management)
	if err != nil {
		return err
	}
	if leader, err := client.Status().Leader(); err != nil || leader == "" {
		return errors.Join(errors.New("no leader"), err)
	}
	if _, err := client.Agent().Self(); err != nil {
		return fmt.Errorf("ask the agent for itself: %w", err)
	}
	raft, err := client.Operator().RaftGetConfiguration(nil)
	if err != nil {
		return fmt.Errorf("ask for the voters: %w", err)
	}
	voters := 0
	for _, server := range raft.Servers {
		if server.Voter {
			voters++
		}
	}
	if voters < len(c.Servers) {
		return fmt.Errorf("%d of %d servers vote", voters, len(c.Servers))
	}
	// A leader that has just been started answers other reads before it has replayed its log.
	nodes, _, err := client.Catalog().Nodes(&api.QueryOptions{RequireConsistent: true})
	if err != nil {
		return fmt.Errorf("ask for the nodes: %w", err)
	}
	for _, other := range c.Servers {
		// A new leader that has never seen a killed server removes it from the catalog.
		if other.ended != nil && !slices.ContainsFunc(nodes, func(n *api.Node) bool { return n.Node == other.Name }) {
			return fmt.Errorf("%s is not in the catalog", other.Name)
		}
	}
	if roots, _, err := client.Connect().CARoots(nil); err != nil || len(roots.Roots) == 0 {
		return errors.Join(errors.New("the mesh has no certificate authority"), err)
	}
	return nil
}
