package cluster_test

import (
	"testing"

	"github.com/pannier/pannier/test/testcluster"
	"github.com/pannier/pannier/test/testns"
)

func TestMain(m *testing.M) { testns.Main(m, 3) }

func TestStory(t *testing.T) {
	c := testcluster.Start(t, testcluster.Options{Servers: 3, Nodes: 2})
	n1 := c.Host("node-1")
	t.Log(n1.Run("node", "status"))
	t.Log(n1.Run("server", "members"))
	c.Volume(n1, "v1", "single-node-writer")
	spec := c.Workload(n1, "w1", "v1")
	t.Log(n1.Run("workload", "start", spec))
	t.Log(c.Host("node-2").Run("volume", "status", "v1"))
	c.Leader().Kill()
	c.Leader()
	c.Volume(c.Host("node-2"), "v2", "single-node-writer")
	t.Log(c.Host("node-2").Run("volume", "status"))
	t.Log(n1.Run("workload", "stop", "w1"))
}
