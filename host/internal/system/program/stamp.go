package program

import (
	"io/fs"
	"syscall"
	"time"
)

// Stamp tells states of a file apart, also two files that had the same path. Stamps are compared by value, and may be
// kept as JSON.
type Stamp struct {
	Size     int64  `json:"size"`
	Modified int64  `json:"modified"` // nanoseconds since 1970, as the next
	Changed  int64  `json:"changed"`  // its content, mode or links; nobody can set it (inode(7), st_ctime)
	Inode    uint64 `json:"inode"`
	Device   uint64 `json:"device"`
}

// coarse is more than the steps in which file systems tell the time.
const coarse = 2 * time.Second

// StampOf returns the stamp of a file as it was when it was looked at.
func StampOf(info fs.FileInfo) Stamp {
	s := Stamp{Size: info.Size(), Modified: info.ModTime().UnixNano()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.Changed, s.Inode, s.Device = st.Ctim.Nano(), st.Ino, st.Dev
	}
	return s
}

// Settled says whether each later change of the file gives it another stamp. A change right after another one may have
// the same time.
func (s Stamp) Settled(now time.Time) bool {
	return s.Changed != 0 && now.Sub(time.Unix(0, s.Changed)) > coarse
}
