package process

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/test/lib/check"
)

// lines collects what is logged, as "[LEVEL] message: fields".
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *lines) logger() hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Output: l, Level: hclog.Trace, DisableTime: true})
}

// tailing runs Tail until the returned function is called.
func tailing(t *testing.T, path string) (out *lines, stop func()) {
	t.Helper()
	out = &lines{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Tail(ctx, path, out.logger()) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(stop)
	return out, stop
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func TestTailKeepsLevelsAndFields(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	appendTo(t, path, `{"@level":"warn","@message":"slow","@module":"driver","@timestamp":"2026-01-01T00:00:00Z","took":"3s"}
E0102 15:04:05.000000       1 main.go:7] klog says so
just text
{"not":"hclog"}

panic: oh
goroutine 1 [running]:
{"@level":"debug","@message":"alive again"}
and without a newline`)
	out, stop := tailing(t, path)
	stop()
	want := `[WARN]  slow: module=driver took=3s
[ERROR] E0102 15:04:05.000000       1 main.go:7] klog says so
[INFO]  just text
[INFO]  {"not":"hclog"}
[ERROR] panic: oh
[ERROR] goroutine 1 [running]:
[DEBUG] alive again
[INFO]  and without a newline
`
	if got := out.String(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestTailContinuesWhereTheLastOneStopped(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	first, stop := tailing(t, path)
	appendTo(t, path, "one\ntwo\n")
	waitFor(t, "two", func() bool { return strings.Contains(first.String(), "two") })
	stop()
	appendTo(t, path, "three\n")
	second, stop := tailing(t, path)
	stop()
	if got := second.String(); got != "[INFO]  three\n" {
		t.Errorf("the second one logged %q", got)
	}
}

func TestTailKeepsTheFileSmall(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	out, stop := tailing(t, path)
	line := strings.Repeat("x", 99) + "\n"
	chunk := strings.Repeat(line, 10<<10) // 1 MiB
	for range 12 {
		appendTo(t, path, chunk)
	}
	waitFor(t, "the file to be emptied", func() bool {
		info, err := os.Stat(path)
		return err == nil && info.Size() < 4<<20
	})
	appendTo(t, path, "after\n")
	waitFor(t, "what follows", func() bool { return strings.Contains(out.String(), "after") })
	stop()
}

// flood is a sink of log lines. A process writes more to its log than it reads for each.
type flood struct {
	t       *testing.T
	path    string
	lines   int
	largest int64
}

func (f *flood) Write(p []byte) (int, error) {
	if f.lines++; f.lines < 50_000 {
		appendTo(f.t, f.path, strings.Repeat("y\n", 1<<10))
	}
	info, err := os.Stat(f.path)
	check.NoError(f.t, err)
	f.largest = max(f.largest, info.Size())
	return len(p), nil
}

func TestTailOfAFlood(t *testing.T) {
	f := &flood{t: t, path: filepath.Join(t.TempDir(), "log")}
	appendTo(t, f.path, strings.Repeat("y\n", 1<<19))
	tail := check.Must(openTail(f.path, hclog.New(&hclog.LoggerOptions{Output: f, Level: hclog.Trace})))(t)
	defer tail.close()
	for more := true; more; {
		var err error
		more, err = tail.read()
		check.NoError(t, err)
	}
	if f.largest < maxLog {
		t.Fatalf("%d lines were logged, no flood", f.lines)
	}
	if f.largest > 2*maxLog {
		t.Errorf("the log had %d MiB", f.largest>>20)
	}
}

func TestTailSurvivesATruncation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	out, stop := tailing(t, path)
	appendTo(t, path, "a long line before\n")
	waitFor(t, "the first line", func() bool { return strings.Contains(out.String(), "before") })
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	appendTo(t, path, "after\n")
	waitFor(t, "the second line", func() bool { return strings.Contains(out.String(), "after") })
	stop()
}

func TestTailSplitsEndlessLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	appendTo(t, path, strings.Repeat("x", 3*maxLine)+"\n")
	out, stop := tailing(t, path)
	stop()
	if n := strings.Count(out.String(), "[INFO]"); n < 3 {
		t.Errorf("logged as %d lines", n)
	}
}

func TestLastWords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for text, want := range map[string]string{
		"":             "",
		"one\ntwo\n\n": "two",
		"old\none":     "one",
		"x\npanic: nil map\n\ngoroutine 1 [running]:\nmain.main()\n\t/x.go:1\n":              "panic: nil map",
		"Traceback\n  File\nValueError: no zone\n":                                           "ValueError: no zone",
		`{"@level":"error","@message":"no disk","error":"full"}`:                             "no disk: full",
		`{"@level":"info","@message":"it listens"}`:                                          "",
		"up\nflag provided but not defined: -x\nUsage of /csi:\n  -v int\n    \tverbosity\n": "flag provided but not defined: -x",
		"Error: unknown flag: --x\nUsage:\n  csi [flags]\n\nUse \"csi -h\" for more.\n":      "Error: unknown flag: --x",
		"up\nusage: csi [-h]\ncsi: error: unrecognized arguments: -x\n":                      "csi: error: unrecognized arguments: -x",
		"\x1b[31mE1 no\x1b[0m zone\x1b[1;2H":                                                 "E1 no zone",
		strings.Repeat("y", 600):                                                             strings.Repeat("y", 512),
	} {
		if err := os.WriteFile(path, []byte("before\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := LastWords(path, int64(len("before\n"))); got != want {
			t.Errorf("%q: got %q", text, got)
		}
	}
	if err := os.WriteFile(path, []byte("again"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := LastWords(path, 1<<20); got != "again" {
		t.Errorf("a file that was cut has %q", got)
	}
	if got := LastWords(path+"x", 0); got != "" {
		t.Errorf("no file: %q", got)
	}
}
