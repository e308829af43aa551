// Package clusterbench measures a cluster of several servers: real agent processes on loopback, with real
// raft, serf and TLS, compared with Consul and etcd with three servers on the same disk (BenchmarkCluster), and with
// the clients of thousands of nodes that do the same thing at once (BenchmarkHerd, of which TestHerd is a small
// version). It asserts nothing about time. The doc of test/bench says how each number is measured.
package clusterbench
