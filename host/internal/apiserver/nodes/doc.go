// Package nodes answers the API's calls about the ledger's nodes, the cluster's members and the keys of its gossip.
package nodes
