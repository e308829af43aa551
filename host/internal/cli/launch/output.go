package launch

import (
	"bytes"
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/cli/launch/child"
)

// maxLine bounds the last line that is kept of a program's output, in bytes.
const maxLine = 300

// output passes a program's output on to standard error and keeps its last line.
type output struct {
	ended chan struct{} // closed when nobody has the pipe any more

	mu   sync.Mutex
	line []byte // the last one, which may still grow
	full bool   // it has ended
}

// newOutput returns an output and the pipe for the program, which the program's user may open: Envoy does, for the path
// /dev/stdout of an access log.
func newOutput(user *child.User) (*output, *os.File, error) {
	from, to, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	if user != nil {
		_ = to.Chown(user.UID, user.GID) // without it, only such a log is missing
	}
	// A write to a broken pipe ends this process (SIGPIPE) if it is to descriptor 2, and fails if it is to a copy.
	copied, err := unix.FcntlInt(os.Stderr.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, nil, errors.Join(err, from.Close(), to.Close())
	}
	o := &output{ended: make(chan struct{})}
	go func() {
		defer close(o.ended)
		stderr := os.NewFile(uintptr(copied), os.Stderr.Name())
		_, _ = io.Copy(io.MultiWriter(o, stderr), from)
		_, _ = io.Copy(o, from) // where nobody reads standard error, the program must not block
		_, _ = stderr.Close(), from.Close()
	}()
	return o, to, nil
}

func (o *output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for line := range bytes.Lines(text) {
		if len(bytes.TrimSpace(line)) == 0 {
			o.full = true
			continue
		}
		if o.full {
			o.line = o.line[:0]
		}
		o.line = append(o.line, line[:min(len(line), maxLine-len(o.line))]...)
		o.full = bytes.HasSuffix(line, []byte("\n"))
	}
	return len(text), nil
}

// logPrefix is what Envoy writes before each message: the time, the thread and where it is in the source.
var logPrefix = regexp.MustCompile(`^(\[[^\]]*\] ?)+`)

// last returns the last line; it is whole when the program, and what that has started, have ended.
func (o *output) last() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.ToValidUTF8(strings.TrimSpace(logPrefix.ReplaceAllString(string(o.line), "")), "")
}
