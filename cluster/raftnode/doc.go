// Package raftnode runs hashicorp/raft for this server: log and votes in raft-wal,
// snapshots in files, timings, bootstrap, and membership. It knows nothing of what
// the log's entries mean.
package raftnode
