package cli

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/host/internal/apiserver"
	"github.com/pannier/pannier/host/internal/apiserver/acl"
	"github.com/pannier/pannier/host/internal/apiserver/acls"
)

// serveACL serves the API of an agent that has ACLs and a ledger, and nothing else.
func serveACL(dir string) (socket string, stop func() error, err error) {
	ctx := context.Background()
	node, err := cluster.Open(ctx, cluster.Config{Dir: filepath.Join(dir, "ledger"), Name: "n1", BootstrapExpect: 1})
	if err != nil {
		return "", nil, err
	}
	socket = filepath.Join(dir, "acl.sock")
	s := apiserver.New(apiserver.Config{
		Socket: socket, Logger: hclog.NewNullLogger(), Metrics: prometheus.NewRegistry(), Name: "n1",
		Ledger: node, ACL: acl.NewResolver(acl.Here{Ledger: node}, 0, hclog.NewNullLogger()),
		ACLs: acls.Handler{Name: "n1", DataDir: dir, Log: hclog.NewNullLogger(), Ledger: node},
	})
	if err = errors.Join(node.WaitReady(ctx), s.Open(ctx)); err != nil {
		return "", nil, errors.Join(err, node.Close())
	}
	return socket, func() error { return errors.Join(s.Close(), node.Close()) }, nil
}
