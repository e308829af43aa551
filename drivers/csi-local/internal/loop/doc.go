// Package loop attaches image files to loop devices and finds them again. All
// state is the kernel's: /sys/block/loop*/loop and LOOP_GET_STATUS64.
//
// What must stay true: a device is taken for a file's only when device and
// inode number of its backing file say so, and a file is never attached a
// second time in the same mode (two devices would not see each other's cached
// writes). It imports the standard library and golang.org/x/sys/unix only.
package loop
