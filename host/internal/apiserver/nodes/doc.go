// Package nodes answers the API's calls about the ledger's nodes, the members of the cluster and the keys of its gossip.
package nodes
