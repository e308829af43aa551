package agent

import (
	"context"
	"slices"
	"time"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/host/internal/apiserver/acl"
	"github.com/pannier/pannier/host/internal/csi/controllers"
	"github.com/pannier/pannier/host/internal/system/pki"
)

// aclCacheTime is how long a node relies on what the servers last said about a token.
const aclCacheTime = 15 * time.Second

// node is an agent of a cluster whose servers keep the ledger.
type node struct{ member }

func (n *node) steps() []step {
	return []step{
		{"data directory", n.openDataDir},
		{"journal", n.openJournal},
		{"secrets", n.openSecrets},
		{"plugins", n.openPlugins}, // they come up while the servers are found
		{"cluster", n.joinCluster},
		{"fence", n.openLease},
		{"ledger", n.openLedger},
		{"consul", n.openConsul},
		{"drivers", n.openDrivers},
		{"peers", n.openPeers},
		{"workloads", n.openWorkloads},
		{"node record", n.openNodeRecord},
		{"lease", n.keepLease},
		{"API", n.openServer},
		{"credentials", n.serveCredentials}, // the API has made the folder of the sockets
		{"signals", n.followSignals},
	}
}

func (n *node) joinCluster(ctx context.Context) error {
	return n.member.joinCluster(ctx, pki.Node, discovery.Node)
}

func (n *node) openLedger(context.Context) error {
	n.ledger = n.servers
	n.clusterID = once(func(ctx context.Context) (string, error) {
		for b := (cluster.Blocking{Wait: time.Minute}); ; {
			c, index, err := cluster.Ask(ctx, n.ledger, &command.QueryCluster{}, b)
			if err != nil || c.ID != "" {
				return c.ID, err
			}
			b.MinIndex = index
		}
	})
	return nil
}

// openConsul needs no ledger: the leader requests the tokens from Consul.
func (n *node) openConsul(context.Context) error { return n.newConsul(nil, nil) }

func (n *node) openDrivers(ctx context.Context) error {
	n.newDrivers()
	n.controllers = controllers.New(controllers.Config{
		Node: n.cfg.Name, ClusterID: n.clusterID, Calls: n.calls, Secrets: n.servers.VolumeSecrets,
	})
	return n.startDrivers(ctx, n.memberDeps())
}

func (n *node) openPeers(context.Context) error {
	n.servePeers(nil)
	return nil
}

func (n *node) openServer(ctx context.Context) error {
	cfg := n.memberConfig()
	cfg.Health = n.health
	if n.cfg.ACL.Enabled {
		cfg.ACL = acl.NewResolver(acl.Servers{Ledger: n.ledger}, aclCacheTime, n.log.Named("acl"))
	}
	return n.serveAPI(ctx, cfg)
}

func (n *node) health() []string { return slices.Concat(n.leaseHealth(), n.pluginHealth()) }
