package generator

import (
	"errors"
	"io"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxToken bounds a token file, in bytes.
const maxToken = 4096

// streamToken reads the token of the proxy's xDS stream; "", which is no file, is no
// token. The file lies in a directory of the workload's, and this process may read
// files that the workload may not: so it is a file with one name, and no link to
// another. FailedPrecondition names the file and never what is in it.
func streamToken(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ELOOP):
		return "", refused(path, "is a symbolic link")
	case err != nil:
		return "", refused(path, "cannot be read: "+err.Error())
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", refused(path, "cannot be read: "+err.Error())
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return "", refused(path, "is no regular file")
	case !ok || stat.Nlink != 1:
		return "", refused(path, "is a hard link to another file")
	}
	text, err := io.ReadAll(io.LimitReader(f, maxToken))
	if err != nil {
		return "", refused(path, "cannot be read: "+err.Error())
	}
	words := strings.Fields(string(text))
	switch {
	case len(words) == 0:
		return "", refused(path, "is empty")
	case len(words) > 1 || len(text) == maxToken:
		return "", refused(path, "holds more than one word")
	}
	return words[0], nil
}

func refused(path, why string) error {
	return status.Errorf(codes.FailedPrecondition, "the token file %q %s: it must be a file that holds the secret id of a Consul ACL token and nothing else", path, why)
}
