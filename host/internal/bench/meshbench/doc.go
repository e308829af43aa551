// Package meshbench measures what Pannier costs on the way to Consul, below the API:
// the host's own packages on a real ledger, the built plugins in processes of their own,
// a real Consul with ACLs and TLS. It has no tests, one benchmark (BenchmarkMesh), and
// asserts nothing about time: it adds its rows to the table of test/bench. `make bench`
// runs both; the doc of test/bench says how each number is measured.
package meshbench
