package launch

import (
	"bytes"
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/cli/launch/child"
)

// maxLine bounds the line that is kept of a program's output, in bytes.
const maxLine = 300

// anError is in a line that is kept for a second: the last lines of Envoy are often its usage, or "exiting".
var anError = regexp.MustCompile(`(?i)\b(error|critical|fatal|panic)\b`)

// output passes a program's output on to standard error and keeps its last line, or the last that reports an error.
type output struct {
	ended chan struct{} // closed when nobody has the pipe any more

	mu      sync.Mutex
	part    []byte // of a line that has not ended
	line    string
	errorAt time.Time // when the last error came
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
		o.part = append(o.part, line[:min(len(line), maxLine-len(o.part))]...)
		if bytes.HasSuffix(line, []byte("\n")) {
			o.end()
		}
	}
	return len(text), nil
}

// end ends a line. o.mu is held.
func (o *output) end() {
	line := strings.TrimSpace(string(o.part))
	o.part = o.part[:0]
	failed := anError.MatchString(line)
	if line != "" && (failed || time.Since(o.errorAt) > time.Second) {
		o.line = line
	}
	if failed {
		o.errorAt = time.Now()
	}
}

// logPrefix is what Envoy writes before each message: the time, the thread and where it is in the source.
var logPrefix = regexp.MustCompile(`^(\[[^\]]*\] ?)+`)

// last returns the line; it is the last one if the program, and what that has started, have ended.
func (o *output) last() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.end()
	return strings.ToValidUTF8(strings.TrimSpace(logPrefix.ReplaceAllString(o.line, "")), "")
}
