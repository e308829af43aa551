// Package pluginbench measures the costs of plugins below the API: a call through the host's supervisor and
// catalog compared with the same call without them, and the effects of swaps on callers. The plugins are
// processes: the built csi-bridge with a real csi-local, and the supervisor's fixture, which misbehaves. It
// has no tests, one benchmark (BenchmarkPlugins), and asserts nothing about time; a failed call or a leftover
// process fails the benchmark. It adds its rows to the table of test/bench. `make bench` runs both; the doc
// of test/bench says how each number is measured.
package pluginbench
