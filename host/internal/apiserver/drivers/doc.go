// Package drivers answers the API's calls about CSI drivers: those of this node, and what other nodes report of theirs.
package drivers
