// Package failpoint names the instants at which a crash of the host is tested.
//
// A normal build does nothing there: Here is empty and inlined away. With the
// build tag failpoint it kills its own process with SIGKILL at the instant that
// the test has armed. It imports the standard library only, and what calls it
// must not depend on it.
//
// A test arms a build with the environment variable PANNIER_FAILPOINT, which
// names a file of lines such as
//
//	stage:intended
//	publish:undone#2
//
// Each line is one crash, and #2 the second time that its instant is reached.
// A line is taken out of the file before the process dies, so that the next
// process of the host goes on with the next line.
package failpoint
