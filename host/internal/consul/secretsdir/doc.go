// Package secretsdir keeps the files that carry a secret of a workload's service:
//
//	<dir>/<namespace>/<workload>/<service>/si_token
//
// What must stay true:
//
//   - They are on a tmpfs, never on a disk: where the directory is not on one, one is
//     mounted there.
//   - A file is 0400 and a service's folder 0700, both of the workload's user; what is
//     above them is 0711 of the agent's.
//   - A file is there as a whole or not at all: it is written to another name in its
//     folder and renamed.
//   - No link is followed below the directory. The user of a workload may put there what
//     it likes: it harms itself alone.
//   - Only what lies in a directory that bears this package's mark is ever removed.
//
// It imports the standard library, golang.org/x/sys/unix and host/internal/csi/mounts only.
package secretsdir
