package program

import (
	"io/fs"
	"syscall"
	"time"
)

// Stamp tells states of a file apart, also two files that had the same path. Stamps are compared by value.
type Stamp struct {
	size    int64
	changed time.Time
	inode   uint64
}

// StampOf returns the stamp of a file as it was when it was looked at.
func StampOf(info fs.FileInfo) Stamp {
	s := Stamp{size: info.Size(), changed: info.ModTime()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode = st.Ino
	}
	return s
}
