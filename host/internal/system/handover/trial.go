package handover

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// A program that is to replace another one first shows, in a process of its own, that it comes up: before the agent's
// data is closed it reads its configuration (Hello), and then it opens everything with the agent's own data, serves
// nobody, and is killed: what it leaves is what every killed agent leaves. Only then it is executed in the agent's
// process. So a program that does not come up cannot end the agent's process.

// firstFD is the first descriptor of exec.Cmd.ExtraFiles.
const firstFD = 3

// helloPatience is how long a program may take until Hello.
const helloPatience = 10 * time.Second

// Hello is what a program says of itself.
type Hello struct {
	Version string `json:"version"`
	// Ledger is the newest level of the ledger's commands that it knows.
	Ledger int `json:"ledger"`
}

// report is a line of JSON from a program that is tried.
type report struct {
	Hello *Hello `json:"hello,omitempty"`
	Up    bool   `json:"up,omitempty"`
}

// reporter is the own side of a program that is tried.
type reporter struct {
	to    *os.File
	first chan struct{} // closed when the agent has closed its data
}

func newReporter(to *os.File) *reporter {
	r := &reporter{to, make(chan struct{})}
	go func() {
		in := bufio.NewReader(os.Stdin)
		if _, err := in.ReadString('\n'); err == nil {
			close(r.first)
			_, _ = in.ReadByte()
		}
		os.Exit(1) // the agent has ended, or does not want it any more
	}()
	return r
}

// Begin says hello, and waits until this program may open the agent's data.
func (i *Inheritance) Begin(ctx context.Context, h Hello) error {
	if err := json.NewEncoder(i.trial.to).Encode(report{Hello: &h}); err != nil {
		return fmt.Errorf("report to the agent: %w", err)
	}
	select {
	case <-i.trial.first:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Up reports that this program has come up.
func (i *Inheritance) Up() error { return json.NewEncoder(i.trial.to).Encode(report{Up: true}) }

// Successor is a program that is tried.
type Successor struct {
	Program string
	Hello   Hello

	file    os.FileInfo // of the program
	cmd     *exec.Cmd
	begin   io.WriteCloser
	reports *json.Decoder
	said    *lastLine
	ended   chan struct{}
	err     error
}

// Propose starts a program with this one's arguments and flag, and returns what it is. It waits to be let to Try. logs
// gets what it writes.
func (s *Sockets) Propose(ctx context.Context, program, flag string, logs io.Writer) (*Successor, error) {
	reports, reporting, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	b := bundle{Report: firstFD}
	extra := []*os.File{reporting}
	s.mu.Lock()
	for n, k := range s.kept {
		k.FD = firstFD + 1 + n
		b.Files, extra = append(b.Files, k.passed), append(extra, k.file)
	}
	s.mu.Unlock()
	told, err := b.variable()
	if err != nil {
		return nil, errors.Join(err, reporting.Close(), reports.Close())
	}
	said := &lastLine{to: logs}
	cmd := exec.Command(program, append(os.Args[1:len(os.Args):len(os.Args)], flag)...)
	cmd.Env, cmd.ExtraFiles = append(os.Environ(), told), extra
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = said, said, time.Second
	file, err := os.Stat(program)
	if err != nil {
		return nil, errors.Join(err, reporting.Close(), reports.Close())
	}
	begin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	_ = reporting.Close() // the program has it; it ends with the program
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", program, err), reports.Close())
	}
	next := &Successor{
		Program: program, file: file, cmd: cmd, begin: begin, reports: json.NewDecoder(reports), said: said,
		ended: make(chan struct{}),
	}
	go func() {
		next.err = cmd.Wait()
		close(next.ended)
	}()
	var first report
	if err := next.expect(ctx, helloPatience, &first, func() bool { return first.Hello != nil }); err != nil {
		next.End()
		return nil, err
	}
	next.Hello = *first.Hello
	return next, nil
}

// Try lets the program open everything. It returns nil if that has come up within patience, and ends it: it has the
// agent's data open.
func (s *Successor) Try(ctx context.Context, patience time.Duration) error {
	if _, err := io.WriteString(s.begin, "\n"); err != nil {
		return s.failed(fmt.Errorf("it has ended: %w", err))
	}
	var last report
	if err := s.expect(ctx, patience, &last, func() bool { return last.Up }); err != nil {
		return err
	}
	s.End()
	return nil
}

// Same fails if the program's path does not lead to what has come up.
func (s *Successor) Same() error {
	now, err := os.Stat(s.Program)
	same := err == nil && os.SameFile(now, s.file) && now.ModTime().Equal(s.file.ModTime()) && now.Size() == s.file.Size()
	if err == nil && !same {
		err = fmt.Errorf("%s was replaced while it was tried: upgrade again", s.Program)
	}
	return err
}

// expect reads the next report.
func (s *Successor) expect(ctx context.Context, patience time.Duration, r *report, ok func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	read := make(chan error, 1)
	go func() { read <- s.reports.Decode(r) }() // ends with the program's pipe
	select {
	case err := <-read:
		switch {
		case err == nil && ok():
			return nil
		case err == nil:
			err = errors.New("it does not say what is expected")
		default: // the pipe is closed: it is about to end
			select {
			case <-s.ended:
				if err = s.err; err == nil {
					err = errors.New("it has ended without a word")
				}
			case <-ctx.Done():
			}
		}
		return s.failed(err)
	case <-ctx.Done():
		return s.failed(fmt.Errorf("it has not come up within %s", patience))
	}
}

func (s *Successor) failed(err error) error {
	s.End()
	if last := strings.TrimPrefix(s.said.String(), "error: "); last != "" {
		return fmt.Errorf("%s does not come up: %s", s.Program, last)
	}
	return fmt.Errorf("%s does not come up: %w", s.Program, err)
}

// End kills the program's process, and waits for its end. It may be called again.
func (s *Successor) End() {
	_ = s.cmd.Process.Kill() // fails only when it has ended
	<-s.ended
}

// lastLine passes on what is written, and keeps the last line.
type lastLine struct {
	to   io.Writer
	mu   sync.Mutex
	line string
}

// maxLine bounds the line that is kept, in bytes.
const maxLine = 1 << 10

func (l *lastLine) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lines := strings.Split(strings.TrimRight(string(p), "\n"), "\n"); lines[len(lines)-1] != "" {
		l.line = lines[len(lines)-1]
		l.line = l.line[:min(len(l.line), maxLine)]
	}
	return l.to.Write(p)
}

func (l *lastLine) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.line
}
