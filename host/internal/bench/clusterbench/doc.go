// Package clusterbench measures a cluster of several servers: real agent processes on loopback, with real
// raft, serf and TLS, compared with Consul and etcd with three servers on the same disk. It has no tests, one
// benchmark (BenchmarkCluster), and asserts nothing about time. The doc of test/bench says how each number is
// measured.
package clusterbench
