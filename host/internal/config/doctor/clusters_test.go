package doctor

import (
	"strings"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// TestOneCluster: agents that have not learned the cluster's id yet, and those that have left, are of no other cluster.
func TestOneCluster(t *testing.T) {
	members := []*hostv1.Member{
		{Name: "a", Status: "alive", Cluster: "one"},
		{Name: "b", Status: "alive"},
		{Name: "c", Status: "left", Cluster: "two"},
	}
	if err := OneCluster(members); err != nil {
		t.Error(err)
	}
	members[2].Status = "alive"
	if err := OneCluster(members); err == nil || !strings.Contains(err.Error(), "2 clusters") {
		t.Errorf("a pool of two clusters: %v", err)
	}
}
