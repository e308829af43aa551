// Package failpoint marks the points at which tests crash the host, and the times that they do not wait for.
//
// In a normal build Here is empty and inlined away. With the build tag failpoint it kills its own process with SIGKILL
// at the point that the test has chosen, and Shorter shortens.
//
// A test sets the environment variable PANNIER_FAILPOINT to the name of a file of lines such as
//
//	stage:intended
//	publish:undone#2
//
// Each line is one crash; #2 means the second time that the point is reached. A line is removed from the file before
// the process dies, so the next process of the host continues with the next line.
package failpoint
