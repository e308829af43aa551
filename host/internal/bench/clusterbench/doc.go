// Package clusterbench measures what several servers agree on: real agents' processes on
// loopback, real raft, serf and TLS, beside Consul and etcd with three servers on the
// same disk. It has no tests, one benchmark (BenchmarkCluster), and asserts nothing about
// time. the doc of test/bench says how each number is measured.
package clusterbench
