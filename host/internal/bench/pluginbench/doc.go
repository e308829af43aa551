// Package pluginbench measures what plugins cost below the API: a call through the
// host's supervisor and catalog beside the same call without them, and what callers see
// of swaps. The plugins are processes: the built csi-bridge with a real csi-local, and the
// supervisor's fixture for the other kinds. It has no tests, one benchmark
// (BenchmarkPlugins), and asserts nothing about time; a call that fails, or a process
// that is left, fails it. It adds its rows to the table of test/bench. `make bench` runs
// both; the doc of test/bench says how each number is measured.
package pluginbench
