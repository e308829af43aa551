package call

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/internal/printable"
)

const (
	// maxLogLines is how many lines of a log can be asked for at once.
	maxLogLines = 10_000
	// maxLogLine is the length in bytes beyond which a line is sent in parts.
	maxLogLine = 64 << 10
	// logInterval is the pause between two reads of a log that is followed.
	logInterval = 200 * time.Millisecond
)

// streamLog sends the last lines of a log and, with follow, new ones until ctx ends. begin is called before the first
// line, which may be far off.
func streamLog(ctx context.Context, path string, recent int, follow bool, begin func() error,
	send func(line string) error,
) error {
	if recent < 0 || recent > maxLogLines {
		return Invalid("log", "recent", fmt.Sprintf("must be 0 to %d", maxLogLines))
	}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // not started yet
	}
	if err != nil {
		return err
	}
	defer file.Close()
	l := &logFile{file: file, buf: make([]byte, maxLogLine), send: func(line []byte) error {
		return send(strings.ToValidUTF8(string(line), "\uFFFD"))
	}}
	if l.offset, err = lastLines(file, recent); err != nil {
		return err
	}
	if err := begin(); err != nil {
		return err
	}
	return l.read(ctx, follow)
}

// SendLog answers a request for the log of something, such as a driver, by a stream of its lines.
func SendLog[M any](ctx context.Context, of, path string, req interface {
	GetRecent() int32
	GetFollow() bool
}, stream *connect.ServerStream[M], message func(line string) *M,
) error {
	err := streamLog(ctx, path, int(req.GetRecent()), req.GetFollow(), func() error { return stream.Send(nil) },
		func(line string) error { return stream.Send(message(line)) })
	if err != nil {
		return fmt.Errorf("read the log of %s: %w", of, err)
	}
	return nil
}

// shownLines are how many of a driver's last lines are shown with its state.
const shownLines = 5

// LastOutput returns the last lines of a log; none if it cannot be read.
func LastOutput(ctx context.Context, path string) (lines []string) {
	_ = streamLog(ctx, path, shownLines, false, func() error { return nil }, func(line string) error {
		lines = append(lines, printable.Unstyled(line))
		return nil
	})
	return lines
}

// logFile reads a growing file, which process.Tail truncates now and then.
type logFile struct {
	file    *os.File
	offset  int64 // of the next read
	buf     []byte
	pending []byte // an incomplete last line
	send    func(line []byte) error
}

// read sends the lines up to the end of the file and, with follow, new ones until ctx ends.
func (l *logFile) read(ctx context.Context, follow bool) error {
	tick := time.NewTicker(logInterval)
	defer tick.Stop()
	for {
		n, err := l.file.ReadAt(l.buf, l.offset)
		l.offset += int64(n)
		if err := l.lines(l.buf[:n]); err != nil {
			return err
		}
		switch {
		case err != nil && !errors.Is(err, io.EOF):
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			continue
		case !follow:
			return l.flush()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		if info, err := l.file.Stat(); err == nil && info.Size() < l.offset {
			l.offset, l.pending = 0, nil
		}
	}
}

// lines sends the complete lines in data and keeps the rest.
func (l *logFile) lines(data []byte) error {
	l.pending = append(l.pending, data...)
	for {
		end, skip := bytes.IndexByte(l.pending, '\n'), 1
		if end > maxLogLine || end < 0 && len(l.pending) > maxLogLine {
			end, skip = maxLogLine, 0
		}
		if end < 0 {
			return nil
		}
		if err := l.send(l.pending[:end]); err != nil {
			return err
		}
		l.pending = l.pending[end+skip:]
	}
}

func (l *logFile) flush() error {
	if len(l.pending) == 0 {
		return nil
	}
	line := l.pending
	l.pending = nil
	return l.send(line)
}

// lastLines returns the offset at which the last n lines of a file begin.
func lastLines(f *os.File, n int) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	end := info.Size()
	if n == 0 {
		return end, nil
	}
	buf := make([]byte, maxLogLine)
	for at := end; at > 0; {
		part := buf[:min(int64(len(buf)), at)]
		at -= int64(len(part))
		if _, err := f.ReadAt(part, at); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		for i := len(part) - 1; i >= 0; i-- {
			// The newline at the end of the file begins no line.
			if part[i] != '\n' || at+int64(i) == end-1 {
				continue
			}
			if n--; n == 0 {
				return at + int64(i) + 1, nil
			}
		}
	}
	return 0, nil
}
