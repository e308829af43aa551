// Package mounts knows where on this node volumes are mounted, and what is really mounted there:
// paths, directories and the kernel's mount table.
//
// It calls no driver and keeps no record. It never follows a link in a driver's folder, removes
// nothing that holds data, and unmounts only below such a folder, never lazily.
package mounts
