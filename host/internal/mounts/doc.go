// Package mounts knows where on this node's disk volumes are mounted, and what
// really is mounted there: paths, directories and the kernel's mount table.
//
// It calls no driver and keeps no record. It never follows a link out of a
// driver's folder, removes nothing but empty directories, and unmounts only what
// lies below a driver's folder.
package mounts
