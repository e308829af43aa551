package apiserver

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

	"github.com/pannier/pannier/cluster/claim"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

const (
	// maxLogLines is how many lines of a plugin's log can be asked for at once.
	maxLogLines = 10_000
	// maxLogLine is the length in bytes from which on a line is sent in parts.
	maxLogLine = 64 << 10
	// logInterval between two looks at a log that is followed.
	logInterval = 200 * time.Millisecond
)

// PluginLog streams what a plugin's processes printed.
func (s pluginService) PluginLog(ctx context.Context, req *connect.Request[hostv1.PluginLogRequest], stream *connect.ServerStream[hostv1.PluginLogResponse]) error {
	name, recent := req.Msg.GetName(), int(req.Msg.GetRecent())
	if err := claim.CheckID(name); err != nil {
		return invalid("plugin", "name", err.Error())
	}
	if recent < 0 || recent > maxLogLines {
		return invalid("plugin log", "recent", fmt.Sprintf("must be 0 to %d", maxLogLines))
	}
	path, err := s.cfg.Plugins.Log(name)
	var file *os.File
	if err == nil {
		file, err = os.Open(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it has not been started yet
	}
	if err != nil {
		return err
	}
	defer file.Close()
	l := &logFile{file: file, buf: make([]byte, maxLogLine), send: func(line []byte) error {
		return stream.Send(&hostv1.PluginLogResponse{Line: strings.ToValidUTF8(string(line), "\uFFFD")})
	}}
	if l.offset, err = lastLines(file, recent); err != nil {
		return fmt.Errorf("read the log of plugin %q: %w", name, err)
	}
	if err := stream.Send(nil); err != nil { // only the headers: it may be long until there is a line
		return err
	}
	if err := l.read(ctx, req.Msg.GetFollow()); err != nil {
		return fmt.Errorf("read the log of plugin %q: %w", name, err)
	}
	return nil
}

// logFile reads a file that grows, and that the supervisor empties from time to time.
type logFile struct {
	file    *os.File
	offset  int64 // read up to here
	buf     []byte
	pending []byte // the beginning of a line whose end is not there yet
	send    func(line []byte) error
}

// read sends the lines up to the end of the file, and then those that come until ctx
// ends where it is to follow.
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

// lines sends the whole lines in data and keeps the rest.
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

// lastLines is the offset at which the last n lines of a file begin.
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
			// The newline that ends the last line begins none.
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
