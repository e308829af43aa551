// Package filesystem makes, recognises, mounts, grows and freezes the file
// systems that a volume may hold (ext4 and xfs), and reads the mount table. It
// knows devices and paths, not volumes.
//
// What must stay true: a publish is one step (a bind mount appears with all its
// flags or not at all), so a crash leaves nothing half mounted; mount flags,
// which may carry secrets, are in no error. It needs Linux 5.12 (mount_setattr)
// and imports the standard library, golang.org/x/sys/unix and
// moby/sys/mountinfo only.
package filesystem
