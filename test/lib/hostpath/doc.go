// Package hostpath provides tests with a third-party CSI driver: kubernetes-csi/csi-driver-host-path, built
// from the module proxy at a pinned version and checksum.
//
// FirstBinary is the same driver as it was for CSI 1.0, from the module kubernetes-csi/drivers.
//
// It is plain CSI with a controller and a node service: it always has STAGE_UNSTAGE_VOLUME, and controller
// publish with -enable-attach. A file-system volume is a directory that is bind-mounted at the target, a
// block volume a file behind a loop device. It uses these programs: mount and umount for every volume,
// losetup and fallocate for block volumes, tar, cp and dd for snapshots and clones, findmnt for the health of
// volumes. If systemd is PID 1 it mounts through systemd-run.
//
// It is for tests and its own command only, and imports nothing of the host, the SDK or the cluster.
package hostpath
