// Package sanity runs csi-test, the conformance suite of the CSI project, against the driver of the tests of clusters.
// It is a package of its own, since ginkgo refuses the flag of tests that run in parallel.
package sanity
