// Package bench measures what Pannier costs: the real programs, the real driver,
// a real disk. It has no tests, one benchmark (BenchmarkPannier), and asserts
// nothing about time: it prints a table and writes it to a file. `make bench` runs
// it; docs/benchmarks.md tells how each number is measured.
package bench
