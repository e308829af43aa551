package program

import (
	"io/fs"
	"syscall"
)

// Stamp tells states of a file apart, also two files that had the same path. Stamps are compared by value.
type Stamp struct {
	Size     int64
	Modified int64 // nanoseconds since 1970, as the next
	Changed  int64 // its content, mode or links; nobody can set it (inode(7), st_ctime)
	Inode    uint64
	Device   uint64
}

// StampOf returns the stamp of a file as it was when it was looked at.
func StampOf(info fs.FileInfo) Stamp {
	s := Stamp{Size: info.Size(), Modified: info.ModTime().UnixNano()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.Changed, s.Inode, s.Device = st.Ctim.Nano(), st.Ino, st.Dev
	}
	return s
}
