// Package drivers answers the API's calls about CSI drivers: this node's drivers, and what other nodes report of
// theirs.
package drivers
