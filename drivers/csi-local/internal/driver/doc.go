// Package driver implements the three CSI services on top of store, loop and
// filesystem. Error codes are those of the CSI specification's tables.
//
// What must stay true:
//   - One operation is in flight per volume and per snapshot; a second one is
//     answered with Aborted.
//   - Nothing about staged or published volumes is remembered: it is read from
//     the mount table and the loop devices each time (usage.go). So every call
//     can be repeated, by another process too.
//   - A device is formatted only when its image is all zero, or when a marker
//     says that an earlier mkfs on such an image was cut short.
//   - What is mounted where something else was asked for is reported, never
//     unmounted.
package driver
