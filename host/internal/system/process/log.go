package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/system/filewatch"
	"github.com/pannier/pannier/internal/printable"
)

const (
	// maxLog is the size in bytes at which a process's log is truncated.
	maxLog = 10 << 20
	// maxLine is the length in bytes above which a line is logged in parts.
	maxLine = 64 << 10
	// readAtOnce is the most that Tail reads at a time. It checks the size after each readBuffer, which is small: a
	// process that floods its log with short lines writes much more while they are logged.
	readAtOnce, readBuffer = 1 << 20, 4 << 10
	// tailInterval is the least time between two reads of the log.
	tailInterval = 100 * time.Millisecond
	// floodInterval is the interval for a log that has just been emptied because its process prints too fast.
	floodInterval = 5 * time.Millisecond
)

// Tail copies what a process prints to path into log until ctx ends, then reads the rest and returns. JSON lines of
// hclog keep their level and their fields. It also keeps the file below about 10 MiB, so it must run as long as the
// process. The position is stored in path.offset: the Tail of a later host continues there and logs no line twice.
func Tail(ctx context.Context, path string, log hclog.Logger) error {
	t, err := openTail(path, log)
	if err != nil {
		return fmt.Errorf("read the log %s: %w", path, err)
	}
	defer t.close()
	watch, _ := filewatch.Start(path) // without one the file is read again and again
	defer watch.Stop()
	changed := watch.Changed()
	for {
		stopping := ctx.Err() != nil
		more, err := t.read()
		if err != nil {
			return fmt.Errorf("read the log %s: %w", path, err)
		}
		if stopping {
			t.flush()
			return nil
		}
		pause := tailInterval
		if t.dropped {
			pause = floodInterval
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			continue
		}
		if more || changed == nil {
			continue
		}
		select {
		case _, watched := <-changed:
			if !watched {
				changed = nil
			}
		case <-ctx.Done():
		}
	}
}

type tail struct {
	path     string
	log      hclog.Logger
	file     *os.File
	mark     *os.File // path.offset
	offset   int64    // position in file
	saved    int64
	buf      []byte
	pending  []byte // the beginning of an incomplete line
	panicked bool   // a Go program is printing its panic
	dropped  bool   // the process prints faster than it can be logged
}

func openTail(path string, log hclog.Logger) (*tail, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	mark, err := os.OpenFile(path+".offset", os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	t := &tail{path: path, log: log, file: file, mark: mark, buf: make([]byte, readBuffer)}
	if data, err := io.ReadAll(io.LimitReader(mark, 32)); err == nil {
		t.offset, _ = strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
		t.offset = max(t.offset, 0)
	}
	t.saved = t.offset
	return t, nil
}

func (t *tail) close() {
	_ = t.file.Close()
	_ = t.mark.Close()
}

// read logs the lines that were added to the file. There may be more to read.
func (t *tail) read() (more bool, err error) {
	for total := 0; ; {
		n, err := t.file.ReadAt(t.buf, t.offset)
		t.offset += int64(n)
		t.lines(t.buf[:n])
		total += n
		if err != nil && !errors.Is(err, io.EOF) {
			return false, err
		}
		end, whole := t.offset, err != nil
		if err = t.settle(); err != nil || t.dropped || whole || total >= readAtOnce {
			return !whole || t.offset < end, err
		}
	}
}

// settle saves the position and keeps the file small.
func (t *tail) settle() error {
	info, err := t.file.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	unread := size - t.offset
	switch {
	case unread < 0: // it was truncated by someone else
		t.offset, t.pending = 0, nil
	case size >= maxLog && unread <= maxLine || unread >= maxLog:
		// The writer appends (O_APPEND), so it continues at the beginning. What it wrote since the last read is lost.
		if err := t.file.Truncate(0); err != nil {
			return err
		}
		if unread > 0 {
			t.log.Warn("the process prints faster than it can be logged: output was dropped", "bytes", unread)
			t.pending = nil
		}
		t.offset = 0
	}
	t.dropped = unread >= maxLog
	return t.save()
}

// save writes the offset of the first line that is not logged yet. If the host dies during the write, one line is
// logged twice at most.
func (t *tail) save() error {
	at := max(t.offset-int64(len(t.pending)), 0)
	if at == t.saved {
		return nil
	}
	if _, err := t.mark.WriteAt(fmt.Appendf(nil, "%-20d\n", at), 0); err != nil {
		return err
	}
	t.saved = at
	return nil
}

// lines logs the complete lines in data and keeps the rest.
func (t *tail) lines(data []byte) {
	for {
		i := bytes.IndexByte(data, '\n')
		if i < 0 {
			break
		}
		t.line(append(t.pending, data[:i]...))
		t.pending = t.pending[:0]
		data = data[i+1:]
	}
	t.pending = append(t.pending, data...)
	if len(t.pending) >= maxLine {
		t.flush()
	}
}

func (t *tail) flush() {
	if len(t.pending) > 0 {
		t.line(t.pending)
		t.pending = t.pending[:0]
	}
}

// line logs one line of a process's output: hclog's JSON with its level and fields, klog's (which most CSI drivers
// use) with its level, anything else as it is.
func (t *tail) line(raw []byte) {
	text := strings.TrimRight(string(raw), "\r")
	if strings.TrimSpace(text) == "" {
		return
	}
	if level, message, fields, ok := parseHclog(raw); ok {
		t.panicked = false
		t.log.Log(level, message, fields...)
		return
	}
	// The stack trace follows the panic, line by line.
	if strings.HasPrefix(text, "panic: ") || strings.HasPrefix(text, "fatal error: ") {
		t.panicked = true
	}
	level := klogLevel(text)
	if t.panicked {
		level = hclog.Error
	}
	t.log.Log(level, text)
}

// parseHclog reads a line of hclog's JSON format.
func parseHclog(raw []byte) (level hclog.Level, message string, fields []any, ok bool) {
	if len(raw) == 0 || raw[0] != '{' {
		return 0, "", nil, false
	}
	var entry map[string]any
	if json.Unmarshal(raw, &entry) != nil {
		return 0, "", nil, false
	}
	message, ok = entry["@message"].(string)
	name, _ := entry["@level"].(string)
	level = hclog.LevelFromString(name)
	if !ok || level == hclog.NoLevel {
		return 0, "", nil, false
	}
	if module, _ := entry["@module"].(string); module != "" {
		fields = append(fields, "module", module)
	}
	for _, key := range slices.Sorted(maps.Keys(entry)) {
		if !strings.HasPrefix(key, "@") {
			fields = append(fields, key, entry[key])
		}
	}
	return level, message, fields, true
}

// klogHeader is "E0102 15:04:05.000000   pid file.go:1] message".
var klogHeader = regexp.MustCompile(`^([IWEF])\d{4} \d\d:\d\d:\d\d`)

func klogLevel(text string) hclog.Level {
	m := klogHeader.FindStringSubmatch(text)
	if m == nil {
		return hclog.Info
	}
	switch m[1] {
	case "W":
		return hclog.Warn
	case "E", "F":
		return hclog.Error
	default:
		return hclog.Info
	}
}

const (
	// maxLastRead is how much of the end of a log LastWords searches, in bytes.
	maxLastRead = 64 << 10
	// maxLastWords bounds the line that it returns, in bytes.
	maxLastWords = 512
)

// reason begins the line in which a program explains why it ends, before its stack: of Go and Python.
var reason = regexp.MustCompile(`(?m)^(panic|fatal error|[A-Za-z_.]+(Error|Exception)): .*$`)

// usage begins the list of a program's flags, which follows the line that says what is wrong with them; a complaint
// after it is Python's.
var (
	usage     = regexp.MustCompile(`(?im)^usage( of .*)?:`)
	complaint = regexp.MustCompile(`(?i)^\S.*\b(error|fatal|failed)\b`)
)

// LogSize returns the size of a log; 0: there is none.
func LogSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// LastWords returns the last complaint in a log after its first bytes: the line that explains why a program ended, if a
// stack follows that, or else the last line before its usage. Empty: it printed nothing, the last line is ordinary
// logging, or the log cannot be read.
func LastWords(path string, after int64) string {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	size := LogSize(path)
	if after > size {
		after = 0 // the file was cut meanwhile
	}
	after = max(after, size-maxLastRead)
	text, err := io.ReadAll(io.NewSectionReader(f, after, size-after))
	if err != nil {
		return ""
	}
	text = bytes.TrimSpace([]byte(printable.Unstyled(string(text))))
	line := text[bytes.LastIndexByte(text, '\n')+1:]
	if at := usage.FindAllIndex(text, -1); len(at) > 0 && !complaint.Match(line) {
		text = bytes.TrimSpace(text[:at[len(at)-1][0]])
		line = text[bytes.LastIndexByte(text, '\n')+1:]
	}
	if all := reason.FindAll(text, -1); len(all) > 0 {
		line = all[len(all)-1]
	} else if level, message, fields, ok := parseHclog(line); ok {
		if level < hclog.Warn {
			return ""
		}
		line = []byte(message)
		if n := slices.Index(fields, any("error")); n >= 0 {
			line = fmt.Appendf(line, ": %v", fields[n+1])
		}
	}
	return strings.ToValidUTF8(strings.TrimSpace(string(line[:min(len(line), maxLastWords)])), "")
}

// openLog opens the file for a process's output, and locks it. The lock belongs to the open file, which the process
// inherits: it is held from the fork until the last descendant that has the file open has ended.
func openLog(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	// A shared lock, so that what is left of an earlier run does not block a new one. It only waits for logLocked,
	// which holds the exclusive lock for an instant.
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock the log %s: %w", path, err)
	}
	return f, nil
}

// logLocked reports whether any process holds openLog's lock.
func logLocked(path string) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return errors.Is(unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
}
