// Package clustertest opens nodes of the ledger for tests: real raft and real
// files, in a temporary directory. It may be imported by tests only.
package clustertest

import (
	"context"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster"
)

// startTimeout bounds how long a node may take to lead.
const startTimeout = time.Minute

// Server is one node that can be restarted in place.
type Server struct {
	*cluster.Node
	cfg cluster.Config
}

// Start opens a cluster of one in a temporary directory and waits until it can be
// used. It is closed at the end of the test.
func Start(t testing.TB) *Server {
	t.Helper()
	return StartWith(t, cluster.Config{})
}

// StartWith is Start with some fields of the configuration set; the others get
// what a single server needs.
func StartWith(t testing.TB, cfg cluster.Config) *Server {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	if cfg.Name == "" {
		cfg.Name = "server-1"
	}
	if cfg.BootstrapExpect == 0 {
		cfg.BootstrapExpect = 1
	}
	s := &Server{cfg: cfg}
	s.open(t)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close the ledger: %v", err)
		}
	})
	return s
}

// Restart closes the node and opens it again.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatalf("close the ledger: %v", err)
	}
	s.open(t)
}

func (s *Server) open(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	node, err := cluster.Open(ctx, s.cfg)
	if err != nil {
		t.Fatalf("open the ledger: %v", err)
	}
	s.Node = node
	if err := node.WaitReady(ctx); err != nil {
		t.Fatalf("wait for the ledger: %v", err)
	}
}
