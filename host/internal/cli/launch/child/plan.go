package child

// Plan is what the child does. It is passed through a pipe, so that it is not visible in an argument list.
type Plan struct {
	// Join is true if the child enters the given mount namespace, where everything is bound already. The parent sets it.
	Join   bool    `json:"join,omitempty"`
	Mounts []Mount `json:"mounts"`
	// Look is true if the child binds nothing and, in place of executing the program, only finds it. The parent sets it.
	Look bool `json:"look,omitempty"`
	// VolumesDir is where the host mounts all volumes. The namespace's copies of these mounts are unmounted. Empty:
	// there are none.
	VolumesDir string `json:"volumes_dir,omitempty"`
	// Command is looked up in Env's PATH, in the new namespace.
	Command string   `json:"command"`
	Args    []string `json:"args"`
	// Env is the program's whole environment, as KEY=value.
	Env []string `json:"env"`
	// User of the program; nil: the caller's.
	User *User `json:"user,omitempty"`
	// Parent is the process with which the child ends.
	Parent int `json:"parent"`
}

// Mount binds a mount of the host at the workload's destination.
type Mount struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
	ReadOnly    bool   `json:"read_only"`
	// Block is true if the source is a device or another file, not a folder.
	Block bool `json:"block"`
	// SUID and Dev are true if set-user-ID programs and device files in it work, unless the source's own mount has nosuid
	// or nodev.
	SUID bool `json:"suid,omitempty"`
	Dev  bool `json:"dev,omitempty"`
}

// User is who runs the program.
type User struct {
	UID    int   `json:"uid"`
	GID    int   `json:"gid"`
	Groups []int `json:"groups"`
	// Name and Home are empty if the system has no such user.
	Name string `json:"name,omitempty"`
	Home string `json:"home,omitempty"`
}

// The exit codes for a program that did not run, as Docker's.
const (
	CodeNotRun        = 125
	CodeNotExecutable = 126
	CodeNotFound      = 127
)

// Error explains why the program did not run.
type Error struct {
	// Code is CodeNotRun, CodeNotExecutable or CodeNotFound.
	Code int
	Text string
}

func (e *Error) Error() string { return e.Text }

// Report is one message of the child; after the last one the pipe is closed.
type Report struct {
	Ready bool   `json:"ready,omitempty"`
	Code  int    `json:"code,omitempty"`
	Error string `json:"error,omitempty"`
}
