// Package testsystemd runs a real systemd as process 1 of a machine of its own for tests: mount, process, network, host
// name, IPC and control group namespaces, and a root file system in memory, into which it is pivoted before systemd
// starts. systemd, and what it runs, has this machine's programs by an overlay of /usr that is thrown away. It shares
// neither /tmp nor /run nor /var, /etc or /dev with this machine, and cannot change kernel settings (/proc/sys and /sys
// are read-only). Only loop devices are the kernel's own. Nothing is left when the test ends.
//
// It is for tests only, and needs root, overlayfs, cgroup v2 and systemd.
package testsystemd
