// Package sparse works on files with holes: it copies them without filling the
// holes and tells whether one holds any data at all. It knows nothing about
// volumes and imports the standard library and golang.org/x/sys/unix only.
//
// What must stay true: a copy reads back byte for byte like its source, and
// "blank" is said only of a file in which every byte is zero.
package sparse
