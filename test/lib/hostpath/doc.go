// Package hostpath gives tests a CSI driver that nobody of this project wrote:
// kubernetes-csi/csi-driver-host-path, built from the module proxy at a pinned
// version and checksum.
//
// It is plain CSI with a controller and a node service: STAGE_UNSTAGE_VOLUME
// always, controller publish with -enable-attach. A file-system volume is a
// directory that is bind-mounted at the target, a block volume a file behind a
// loop device. While it runs it needs these programs: mount and umount for every
// volume, losetup and fallocate for block volumes, tar, cp and dd for snapshots
// and clones, findmnt for the health of volumes. Where systemd is PID 1 it mounts
// by way of systemd-run.
//
// It may be imported by tests and by its own command only, and imports nothing
// of the host, the SDK or the cluster.
package hostpath
